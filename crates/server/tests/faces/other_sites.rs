//! While no token is asked for, pages of other sites get nothing through a browser on this machine.

use crate::support::raw::{Raw, get};
use crate::support::{Call, Server, Setup};

fn status(server: &Server, origin: &str) -> u16 {
    server.send(Call::new("GET", "/admin/policies").header("origin", origin)).status
}

#[test]
fn a_page_of_another_site_is_refused_while_the_server_is_open() {
    let server = Server::memory();
    assert_eq!(status(&server, "https://evil.example"), 403);
    assert_eq!(status(&server, "null"), 403);
    assert_eq!(status(&server, "http://127.0.0.1.evil.example:80"), 403);
}

#[test]
fn pages_of_this_machine_are_not() {
    let server = Server::memory();
    for host in ["localhost", "localhost:3000", "127.0.0.1:3000", "[::1]:3000"] {
        assert_eq!(status(&server, &format!("http://{host}")), 200, "{host}");
    }
}

#[test]
fn a_site_whose_name_points_at_this_machine_is_refused_too() {
    let server = Server::memory();
    let status = |host: &str| {
        let mut raw = Raw::connect(&server);
        raw.send(get("/admin/policies").replace("Host: test", &format!("Host: {host}")));
        raw.reply().status
    };
    for host in
        ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"]
    {
        assert_eq!(status(host), 403, "{host}");
    }
    for host in
        ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "tollgate:8080", "10.0.0.7"]
    {
        assert_eq!(status(host), 200, "{host}");
    }
}

#[test]
fn with_a_token_any_name_and_any_page_will_do() {
    let server = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", "admin").into_server();
    let call = Call::new("GET", "/admin/policies").token("admin");
    server.send(call.header("Origin", "https://app.example").header("Host", "toll.example")).ok();
}

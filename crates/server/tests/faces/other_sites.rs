//! While no token is asked for, pages of other sites get nothing through a browser on this machine.

use crate::support::{Call, Server};

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

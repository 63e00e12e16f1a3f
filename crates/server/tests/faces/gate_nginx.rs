//! Behind a real nginx, with the configuration in `examples/nginx`.

use serde_json::json;

use crate::support::proxy::Proxy;
use crate::support::{Call, Reply, Server, Setup, used};

const CONFIG: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/nginx/tollgate.toml"));

/// nginx vouches for the address and the e-mail that these headers give.
const VOUCHED: [(&str, &str); 2] = [
    ("X-Forwarded-For   $remote_addr;", "X-Forwarded-For $http_test_address;"),
    ("X-Email            \"\";", "X-Email $http_test_email;"),
];

fn example() -> Server {
    Setup::memory().config(CONFIG).into_server()
}

fn get(path: &str) -> Call {
    Call::new("GET", path)
}

fn from_application(reply: &Reply) {
    let expected = (200, "hello from the application");
    assert_eq!((reply.status, reply.body.as_str()), expected, "{reply:?}");
}

#[test]
fn a_client_sees_429_with_the_wait_and_the_headers() {
    let server = example();
    let nginx = Proxy::nginx(&server, &[]);
    for remaining in (0..20).rev() {
        let reply = nginx.send(get("/api/things?x=1"));
        from_application(&reply);
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(remaining), "{reply:?}");
        assert_eq!(reply.number("x-ratelimit-limit"), Some(20));
        assert_eq!(reply.header("retry-after"), None);
    }
    let reply = nginx.send(get("/api/things"));
    assert_eq!(reply.status, 429, "{reply:?}");
    let wait = reply.number("retry-after").unwrap();
    assert!((1..=61).contains(&wait), "{reply:?}");
    assert_eq!(reply.header("ratelimit-policy"), Some("\"minute\";q=20;w=60"));
    assert!(reply.header("ratelimit").unwrap().starts_with("\"minute\";r=0;t="), "{reply:?}");
    for name in ["ratelimit", "retry-after", "x-ratelimit-reset"] {
        assert_eq!(reply.headers.get_all(name).iter().count(), 1, "{name}: {reply:?}");
    }
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = reply.json();
    assert_eq!((&body["ok"], &body["retry_after"]), (&json!(false), &json!(wait)));
    assert!(body["error"].is_string());
    let elsewhere = nginx.send(get("/elsewhere"));
    from_application(&elsewhere);
    assert_eq!(elsewhere.header("ratelimit"), None, "no policy, no headers");
}

#[test]
fn what_a_client_says_about_itself_changes_nothing() {
    let server = example();
    let nginx = Proxy::nginx(&server, &[]);
    for count in 0..20 {
        let reply = nginx.send(
            get("/api/x")
                .header("X-Forwarded-For", &format!("203.0.113.{count}"))
                .header("X-Real-IP", &format!("203.0.113.{count}"))
                .header("X-Original-URI", "/elsewhere")
                .header("X-Forwarded-Uri", "/elsewhere")
                .header("X-Forwarded-Method", "POST")
                .header("X-User-ID", &format!("user-{count}")),
        );
        from_application(&reply);
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(19 - count));
    }
    let spoofed = get("/api/x")
        .header("X-Forwarded-For", "198.51.100.9")
        .header("X-Original-URI", "/elsewhere")
        .header("Authorization", "Bearer anything");
    assert_eq!(nginx.send(spoofed).status, 429);
    let subject = json!({ "ip": "127.0.0.1", "route": "/api/*" });
    assert_eq!(server.used("api", &subject), [20], "the peer of nginx, and nobody else");
}

#[test]
fn no_way_of_writing_a_path_gets_past_nginx() {
    let server = example();
    let nginx = Proxy::nginx(&server, &[]);
    for _ in 0..20 {
        nginx.send(get("/api/x"));
    }
    for path in [
        "/api/x/",
        "//api//x",
        "/./api/x",
        "/y/../api/x",
        "/y/%2e%2e/api/x",
        "/%61pi/x",
        "/api%2Fx",
        "/y/..%2fapi/x",
        "/api;a/x",
        "/api%5Cx",
    ] {
        assert_eq!(nginx.send(get(path)).status, 429, "{path}");
    }
}

#[test]
fn the_third_tier_refuses_and_the_first_two_show_no_spend() {
    let server = example();
    let nginx = Proxy::nginx(&server, &VOUCHED);
    let cleanup = |address: &str, email: &str| {
        let call = Call::new("POST", "/cleanup").bytes("{}");
        nginx.send(call.header("Test-Address", address).header("Test-Email", email))
    };
    let used_by = |address: &str, email: &str| {
        used(&server.peek("cleanup", &json!({ "ip": address, "email": email })))
    };
    let ada = "ada@example.com";
    for _ in 0..3 {
        from_application(&cleanup("203.0.113.7", ada));
    }
    for _ in 0..5 {
        let reply = cleanup("203.0.113.7", ada);
        assert_eq!(reply.status, 429, "{reply:?}");
        let wait = reply.number("retry-after").unwrap();
        assert!((3_500..=3_660).contains(&wait), "the e-mail's own hour: {reply:?}");
        let policy = reply.header("ratelimit-policy").unwrap();
        assert_eq!(policy, r#""global";q=1000;w=60, "ip";q=5;w=60, "email";q=3;w=3600"#);
    }
    assert_eq!(used_by("203.0.113.7", ada), [3, 3, 3], "the refused ones count nowhere");
    // The address has its other two.
    let bob = "bob@example.com";
    from_application(&cleanup("203.0.113.7", bob));
    from_application(&cleanup("203.0.113.7", bob));
    let reply = cleanup("203.0.113.7", bob);
    assert_eq!(reply.status, 429);
    assert!((1..=61).contains(&reply.number("retry-after").unwrap()), "{reply:?}");
    assert_eq!(used_by("203.0.113.7", bob), [5, 5, 2]);
    // A GET is not a cleanup, and an e-mail that is not there is nobody.
    from_application(&nginx.send(get("/cleanup")));
    let nobody = Call::new("POST", "/cleanup").bytes("{}").header("Test-Address", "203.0.113.9");
    let reply = nginx.send(nobody);
    assert_eq!(reply.status, 401, "{reply:?}");
    assert_eq!(used_by("203.0.113.9", "eve@example.com"), [5, 0, 0]);
}

#[test]
fn as_shipped_nobody_has_an_e_mail_whatever_they_say() {
    let server = example();
    let nginx = Proxy::nginx(&server, &[]);
    let spoofed = Call::new("POST", "/cleanup").bytes("{}").header("X-Email", "ada@example.com");
    assert_eq!(nginx.send(spoofed).status, 401);
    let subject = json!({ "ip": "127.0.0.1", "email": "ada@example.com" });
    assert_eq!(used(&server.peek("cleanup", &subject)), [0, 0, 0]);
}

#[test]
fn a_token_between_nginx_and_the_gate_is_asked_for() {
    let token = "of-the-proxy";
    let setup = Setup::memory().env("TOLLGATE_ADMIN_TOKEN", token);
    let server = setup.config(CONFIG).into_server();
    let without = Proxy::nginx(&server, &[]);
    assert_eq!(without.send(get("/api/x").header("X-API-Token", token)).status, 401);
    let set = format!("X-API-Token \"{token}\"");
    let with = Proxy::nginx(&server, &[("X-API-Token \"\"", &set)]);
    from_application(&with.send(get("/api/x").header("Authorization", "Bearer of-the-user")));
}

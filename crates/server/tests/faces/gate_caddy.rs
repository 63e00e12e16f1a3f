//! Behind a real Caddy, with the configuration in `examples/caddy`.

use crate::support::proxy::Proxy;
use crate::support::{Call, Server, Setup};

const CONFIG: &str = r#"
[gate]
trusted_proxies = ["127.0.0.1"]
uri_headers = ["X-Forwarded-Uri"]
method_headers = ["X-Forwarded-Method"]
identity = { "X-User-ID" = "user", "X-Email" = "email" }

[policy.api]
routes = ["/api/*"]
limits = [{ name = "all", max = 3, per = "3650d", by = ["ip", "route"] }]

[policy.users]
routes = ["POST /users"]
limits = [{ name = "all", max = 1, per = "3650d", by = ["user"] }]

[policy.letters]
routes = ["POST /letters"]
limits = [{ name = "all", max = 1, per = "3650d", by = ["email"] }]
"#;

fn example() -> Server {
    Setup::memory().config(CONFIG).into_server()
}

#[test]
fn a_client_sees_429_and_every_answer_has_the_headers() {
    let server = example();
    let caddy = Proxy::caddy(&server, &[]);
    for remaining in [2, 1, 0] {
        let reply = caddy.send(Call::new("POST", "/api/x?y=1").bytes("a body"));
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "hello from the application"),
            "{reply:?}"
        );
        assert_eq!(reply.number("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(reply.header("ratelimit-policy"), Some("\"all\";q=3;w=315360000"));
    }
    let reply = caddy.send(Call::new("GET", "/api/x"));
    reply.problem(429);
    assert!(reply.number("retry-after").unwrap() >= 1, "{reply:?}");
    assert!(reply.header("ratelimit").unwrap().starts_with("\"all\";r=0;t="), "{reply:?}");
    let elsewhere = caddy.send(Call::new("GET", "/elsewhere"));
    assert_eq!((elsewhere.status, elsewhere.header("ratelimit")), (200, None), "{elsewhere:?}");
}

#[test]
fn what_a_client_says_about_itself_changes_nothing() {
    let server = example();
    let caddy = Proxy::caddy(&server, &[]);
    for count in 0..4 {
        let reply = caddy.send(
            Call::new("GET", "/api/x")
                .header("X-Forwarded-For", &format!("203.0.113.{count}"))
                .header("X-Forwarded-Uri", "/elsewhere")
                .header("X-Original-URI", "/elsewhere")
                .header("X-Forwarded-Method", "POST"),
        );
        assert_eq!(reply.status, if count < 3 { 200 } else { 429 }, "{reply:?}");
    }
    let spoofed = Call::new("POST", "/users").bytes("x").header("X-User-ID", "ada");
    caddy.send(spoofed.clone()).fault(401, "subject.user");
    let letter = Call::new("POST", "/letters").bytes("x").header("X-Email", "ada@example.com");
    caddy.send(letter).fault(401, "subject.email");
    let set = ("request_header -X-User-ID", "request_header X-User-ID bob");
    let vouching = Proxy::caddy(&server, &[set]);
    assert_eq!(vouching.send(spoofed.clone()).status, 200);
    assert_eq!(vouching.send(spoofed).status, 429);
    let used = |user: &str| server.used("users", &serde_json::json!({ "user": user }));
    assert_eq!((used("ada"), used("bob")), (vec![0], vec![1]));
}

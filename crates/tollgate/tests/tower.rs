//! The tower layer around real axum services and plain ones.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath};
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::tower::{RefusalBody, TollgateLayer, client_ip, extension, header};
use tollgate::{Policy, Subject, Tollgate, TrustedProxies};
use tower::{Service, ServiceBuilder, ServiceExt};

const FOREVER: &str = "3650d";

async fn gate() -> Tollgate {
    Tollgate::open("memory:").await.expect("memory opens")
}

fn policy(name: &str, document: &Value) -> Policy {
    Policy::from_json(name, document.clone()).expect("valid")
}

fn by(attribute: &str, max: u64) -> Policy {
    let limits = json!([{ "name": "l", "max": max, "per": FOREVER, "by": [attribute] }]);
    policy("p", &json!({ "limits": limits }))
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let request = Request::builder().uri(path);
    let request = headers.iter().fold(request, |r, (name, value)| r.header(*name, *value));
    request.body(Body::empty()).expect("a request")
}

struct Reply {
    status: StatusCode,
    parts: http::response::Parts,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}", self.body))
    }
}

async fn send<S>(app: &S, request: Request<Body>) -> Reply
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
{
    let response = app.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let body = String::from_utf8(bytes.to_vec()).expect("text");
    Reply { status: parts.status, parts, body }
}

fn app(layer: TollgateLayer) -> axum::Router {
    axum::Router::new()
        .route("/users/{id}", get(|| async { "a user" }).post(|| async { "posted" }))
        .route("/other", get(|| async { "other" }))
        .route("/broken", get(|| async { StatusCode::BAD_GATEWAY }))
        .layer(layer)
}

#[tokio::test]
async fn a_refusal_is_as_the_seed_has_it_and_every_answer_has_headers() {
    let layer = TollgateLayer::by_value(gate().await, by("user", 2)).key(header("x-user", "user"));
    let app = app(layer);
    for remaining in ["1", "0"] {
        let reply = send(&app, request("/users/1", &[("x-user", "ada")])).await;
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "a user"));
        assert_eq!(reply.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(reply.header("ratelimit-policy"), Some("\"l\";q=2;w=315360000"));
    }
    let reply = send(&app, request("/users/1", &[("x-user", "ada")])).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    let secs = reply.header("retry-after").expect("a wait").parse::<u64>().expect("a number");
    assert!(secs >= 1);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    for name in ["ratelimit", "x-ratelimit-limit", "x-ratelimit-reset"] {
        assert!(reply.header(name).is_some(), "{name}");
    }
    let said = reply.json();
    assert_eq!((&said["ok"], &said["retry_after"]), (&json!(false), &json!(secs)));
    assert!(said["error"].as_str().expect("text").contains("2 of 2 used"), "{said}");
    let bob = send(&app, request("/users/1", &[("x-user", "bob")])).await;
    assert_eq!(bob.status, StatusCode::OK);
}

#[tokio::test]
async fn of_one_limit_around_another_both_are_listed_and_the_tightest_is_told() {
    let layer = async |max| {
        TollgateLayer::by_value(gate().await, by("user", max)).key(header("x-user", "user"))
    };
    for (inner, outer) in [(1, 100), (100, 1)] {
        let app = app(layer(inner).await).layer(layer(outer).await);
        let reply = send(&app, request("/other", &[("x-user", "ada")])).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("x-ratelimit-limit"), Some("1"), "inside {inner}");
        assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
        let lists = reply.parts.headers.get_all("ratelimit-policy");
        let quotas = [format!("\"l\";q={inner};w="), format!("\"l\";q={outer};w=")];
        for (list, quota) in lists.iter().zip(&quotas) {
            assert!(list.to_str().expect("text").starts_with(quota), "{list:?}");
        }
        assert_eq!(lists.iter().count(), 2);
        let reply = send(&app, request("/other", &[("x-user", "ada")])).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(reply.header("x-ratelimit-limit"), Some("1"), "inside {inner}");
        assert!(reply.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn a_refusal_can_be_a_problem_document() {
    let layer = TollgateLayer::by_value(gate().await, by("user", 1))
        .key(header("x-user", "user"))
        .refusal_body(RefusalBody::Problem);
    let app = app(layer);
    send(&app, request("/other", &[("x-user", "ada")])).await;
    let reply = send(&app, request("/other", &[("x-user", "ada")])).await;
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    let problem = reply.json();
    assert_eq!((&problem["status"], &problem["policy"]), (&json!(429), &json!("p")));
    assert_eq!(problem["violated-policies"], json!(["l"]));
    assert!(problem["type"].as_str().expect("text").ends_with("#quota-exceeded"));
    let reply = send(&app, request("/other", &[])).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["status"]), (401, &json!(401)));
}

#[tokio::test]
async fn stored_policies_are_used_as_they_are_at_the_moment() {
    let gate = gate().await;
    let app = app(TollgateLayer::by_policy(gate.clone(), "p").key(header("x-user", "user")));
    let ada = || request("/other", &[("x-user", "ada")]);
    assert_eq!(send(&app, ada()).await.status, StatusCode::INTERNAL_SERVER_ERROR, "no policy");
    gate.apply(&by("user", 1), "test").await.expect("applied");
    assert_eq!(send(&app, ada()).await.status, StatusCode::OK);
    assert_eq!(send(&app, ada()).await.status, StatusCode::TOO_MANY_REQUESTS);
    gate.apply(&by("user", 2), "test").await.expect("applied");
    assert_eq!(send(&app, ada()).await.status, StatusCode::OK);
    gate.apply(&by("user", 0), "test").await.expect("applied");
    let shut = send(&app, ada()).await;
    assert_eq!((shut.status.as_u16(), shut.header("retry-after")), (422, None));
}

#[tokio::test]
async fn routes_choose_the_policy_and_what_no_route_is_for_passes() {
    let gate = gate().await;
    let users = json!({
        "routes": ["/users/{id}", "POST /users/{id}"],
        "limits": [{ "name": "l", "max": 1, "per": FOREVER, "by": ["route", "param.id"] }],
    });
    gate.apply(&policy("users", &users), "test").await.expect("applied");
    let app = app(TollgateLayer::by_routes(gate.clone()));
    for (path, status) in
        [("/users/1", 200), ("/users/1", 429), ("/users/%31", 429), ("/users/2", 200)]
    {
        assert_eq!(send(&app, request(path, &[])).await.status.as_u16(), status, "{path}");
    }
    let mut posted = request("/users/1", &[]);
    *posted.method_mut() = http::Method::POST;
    assert_eq!(send(&app, posted).await.body, "posted", "another route, another count");
    for _ in 0..3 {
        let reply = send(&app, request("/other", &[])).await;
        assert_eq!((reply.status.as_u16(), reply.header("ratelimit")), (200, None));
    }
    let other = json!({ "routes": ["/other"], "limits": [{ "name": "l", "max": 9, "per": "1s" }] });
    gate.apply(&policy("other", &other), "test").await.expect("applied");
    let deceptive = send(&app, request("/users/..%2F..%2Fother", &[])).await;
    assert_eq!(deceptive.status, StatusCode::BAD_REQUEST, "{}", deceptive.body);
    gate.delete_policy("users", "test").await.expect("deleted");
    assert_eq!(send(&app, request("/users/1", &[])).await.status.as_u16(), 200);
}

#[tokio::test]
async fn a_route_that_a_key_gave_stays() {
    let gate = gate().await;
    let all = json!({
        "routes": ["/*"],
        "limits": [{ "name": "l", "max": 1, "per": FOREVER, "by": ["route"] }],
    });
    gate.apply(&policy("all", &all), "test").await.expect("applied");
    let layer = TollgateLayer::by_routes(gate)
        .key(extension("route", |path: &MatchedPath| path.as_str().into()));
    let app = app(layer);
    for (path, status) in [("/users/1", 200), ("/users/2", 429), ("/other", 200)] {
        let reply = send(&app, request(path, &[])).await;
        assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
    }
}

#[tokio::test]
async fn what_a_failed_request_spent_is_given_back() {
    let gate = gate().await;
    let limited = |layer: TollgateLayer| {
        app(layer.key(|_: &Parts, subject: &mut Subject<'_>| subject.add("user", "ada")))
    };
    let app = limited(TollgateLayer::by_value(gate.clone(), by("user", 1)));
    for _ in 0..3 {
        let reply = send(&app, request("/broken", &[])).await;
        assert_eq!(reply.status, StatusCode::BAD_GATEWAY);
        assert!(reply.header("ratelimit").is_some());
    }
    assert_eq!(send(&app, request("/other", &[])).await.status, StatusCode::OK);
    assert_eq!(send(&app, request("/other", &[])).await.status, StatusCode::TOO_MANY_REQUESTS);
    let kept = TollgateLayer::by_value(self::gate().await, by("user", 1)).refund_when(|_, _| false);
    let app = limited(kept);
    assert_eq!(send(&app, request("/broken", &[])).await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(send(&app, request("/broken", &[])).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn an_error_of_the_service_gives_back_too() {
    let gate = gate().await;
    let layer = TollgateLayer::by_value(gate, by("user", 1)).key(header("x-user", "user"));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let service = ServiceBuilder::new().layer(layer).service_fn(move |_: Request<Body>| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move { if call < 2 { Err("down") } else { Ok(Response::new(Body::empty())) } }
    });
    let ada = || request("/", &[("x-user", "ada")]);
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot(ada()).await.expect_err("it is down"), "down");
    }
    assert_eq!(service.clone().oneshot(ada()).await.expect("up").status(), StatusCode::OK);
    let refused = service.clone().oneshot(ada()).await.expect("an answer");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(calls.load(Ordering::Relaxed), 3, "a refused request never reaches the service");
}

#[tokio::test]
async fn a_request_has_its_own_cost() {
    let layer = TollgateLayer::by_value(gate().await, by("user", 5))
        .key(header("x-user", "user"))
        .cost(|parts| {
            parts.headers.get("x-cost").map_or(1, |c| c.to_str().expect("text").parse().expect("n"))
        });
    let app = app(layer);
    for (cost, status) in [("3", 200), ("3", 429), ("6", 422), ("0", 200), ("2", 200), ("1", 429)] {
        let reply = send(&app, request("/other", &[("x-user", "ada"), ("x-cost", cost)])).await;
        assert_eq!(reply.status.as_u16(), status, "{cost}");
        assert_eq!(reply.header("ratelimit").is_some(), cost != "0");
    }
}

#[tokio::test]
async fn keys_come_from_headers_addresses_and_extensions() {
    let gate = gate().await;
    let limits = json!([{ "name": "l", "max": 1, "per": FOREVER, "by": ["ip", "route"] }]);
    let trusted = TrustedProxies::new(["10.0.0.0/8"]).expect("a network");
    let peer = |parts: &Parts| -> Option<IpAddr> {
        Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip())
    };
    let layer = TollgateLayer::by_value(gate, policy("p", &json!({ "limits": limits })))
        .key(client_ip(trusted, peer))
        .key(extension("route", |path: &MatchedPath| path.as_str().into()));
    let app = app(layer);
    let from = |peer: &str, forwarded: &str, path: &str| {
        let mut request = request(path, &[("x-forwarded-for", forwarded)]);
        let peer: IpAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 1)));
        request
    };
    for (peer, forwarded, path, status) in [
        ("10.0.0.1", "203.0.113.7", "/users/1", 200),
        ("10.0.0.1", "203.0.113.7", "/users/2", 429),
        ("10.0.0.1", "9.9.9.9, 203.0.113.7", "/users/2", 429),
        ("10.0.0.1", "203.0.113.7", "/other", 200),
        ("198.51.100.1", "203.0.113.9", "/other", 200),
        ("198.51.100.1", "203.0.113.10", "/other", 429),
    ] {
        let reply = send(&app, from(peer, forwarded, path)).await;
        assert_eq!(reply.status.as_u16(), status, "{peer} {forwarded} {path}");
    }
    assert_eq!(send(&app, request("/other", &[])).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn who_does_not_say_who_they_are_is_401_and_nonsense_is_400() {
    let app =
        app(TollgateLayer::by_value(gate().await, by("user", 1)).key(header("x-user", "user")));
    let long = "x".repeat(2_000);
    for (headers, status) in [
        (vec![], 401),
        (vec![("x-user", "")], 401),
        (vec![("x-user", "ada"), ("x-user", "bob")], 401),
        (vec![("x-user", long.as_str())], 400),
    ] {
        let reply = send(&app, request("/other", &headers)).await;
        assert_eq!(reply.status.as_u16(), status, "{headers:?}");
        assert_eq!(reply.json()["ok"], false);
    }
}

#[tokio::test]
async fn a_store_that_cannot_answer_is_as_the_policy_says() {
    let document = |on_store_error: &str| {
        json!({ "on_store_error": on_store_error,
            "limits": [{ "name": "l", "max": 1, "per": FOREVER }] })
    };
    for (on_store_error, status, expected) in [
        ("refuse", StatusCode::SERVICE_UNAVAILABLE, 503),
        ("refuse", StatusCode::INTERNAL_SERVER_ERROR, 500),
        ("allow", StatusCode::SERVICE_UNAVAILABLE, 200),
        ("local", StatusCode::SERVICE_UNAVAILABLE, 200),
    ] {
        let gate = gate().await;
        let layer = TollgateLayer::by_value(gate.clone(), policy("p", &document(on_store_error)));
        let app = app(layer.store_error_status(status));
        gate.close();
        let reply = send(&app, request("/other", &[])).await;
        assert_eq!(reply.status.as_u16(), expected, "{on_store_error}");
        assert_eq!(reply.header("retry-after").is_some(), expected != 200);
    }
}

#[tokio::test]
async fn a_bare_hyper_service_is_limited_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let layer = TollgateLayer::by_value(gate().await, by("user", 1)).key(header("x-user", "user"));
    let answer = |_: Request<hyper::body::Incoming>| async {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::from("hello")))
    };
    let service = ServiceBuilder::new().layer(layer).service_fn(answer);
    let (mut client, server) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let service = hyper_util::service::TowerToHyperService::new(service);
        let io = hyper_util::rt::TokioIo::new(server);
        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
    });
    let ask = "GET / HTTP/1.1\r\nHost: x\r\nX-User: ada\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: x\r\nX-User: ada\r\nConnection: close\r\n\r\n";
    client.write_all(format!("{ask}{last}").as_bytes()).await.expect("it listens");
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.expect("it answers");
    assert!(answers.starts_with("HTTP/1.1 200 OK\r\n") && answers.contains("hello"), "{answers}");
    let (_, refused) = answers.split_once("hello").expect("the first answer");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{answers}");
    assert!(refused.contains("\r\nretry-after: ") && refused.contains("\"ok\":false"), "{answers}");
}

#[tokio::test]
async fn a_grpc_request_is_refused_with_a_grpc_status() {
    let app = axum::Router::new()
        .route("/pkg.Service/Call", post(|| async { [("grpc-status", "13")] }))
        .route("/pkg.Service/Good", post(|| async { [("grpc-status", "0")] }))
        .layer(TollgateLayer::by_value(gate().await, by("user", 1)).key(header("x-user", "user")));
    let call = |path: &str| {
        let headers = [("content-type", "application/grpc+proto"), ("x-user", "ada")];
        let mut request = request(path, &headers);
        *request.method_mut() = http::Method::POST;
        request
    };
    for _ in 0..2 {
        let failed = send(&app, call("/pkg.Service/Call")).await;
        assert_eq!(failed.header("grpc-status"), Some("13"), "an internal error is given back");
    }
    let reply = send(&app, call("/pkg.Service/Good")).await;
    assert_eq!(reply.header("grpc-status"), Some("0"));
    let reply = send(&app, call("/pkg.Service/Good")).await;
    assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, Some("8")));
    assert_eq!(reply.header("content-type"), Some("application/grpc"));
    assert!(reply.header("grpc-message").expect("a sentence").contains("is reached"));
    assert!(reply.header("retry-after").is_some() && reply.body.is_empty());
}

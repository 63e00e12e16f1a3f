//! Which route answers for which request, and that no way of writing a path gets around one.

use proptest::prelude::*;
use tollgate_core::Instant;

use super::path::{Reading, read};
use super::table::Table;
use super::*;
use crate::policy::Policy;

/// A table of policies, each with its routes.
fn table(policies: &[(&str, &[&str])]) -> Table {
    let compiled: Vec<_> = policies
        .iter()
        .map(|(name, routes)| {
            let document = serde_json::json!({
                "routes": routes, "limits": [{ "name": "x", "max": 1, "per": "1s" }]
            });
            let policy = Policy::from_json(name, document).unwrap();
            Arc::new(Compiled::new(policy, 1, Instant::MIN, None))
        })
        .collect();
    Table::new(compiled.iter())
}

fn of_routes(routes: &[&str]) -> Table {
    table(&[("p", routes)])
}

fn pattern(table: &Table, method: &str, path: &str) -> Option<String> {
    table.find(method, path).map(|matched| matched.pattern().to_owned())
}

#[test]
fn a_literal_goes_before_a_parameter_and_that_before_a_prefix() {
    let table = of_routes(&["/*", "/api/*", "/api/v1/*", "/api/{x}/a", "/api/v1/{y}", "/api/v1/a"]);
    for (path, expected) in [
        ("/api/v1/a", "/api/v1/a"),
        ("/api/v1/b", "/api/v1/{y}"),
        ("/api/v1/b/c", "/api/v1/*"),
        ("/api/v1", "/api/v1/*"),
        ("/api/v2/a", "/api/{x}/a"),
        ("/api/v2/b", "/api/*"),
        ("/api", "/api/*"),
        ("/apis", "/*"),
        ("/", "/*"),
        ("", "/*"),
    ] {
        assert_eq!(pattern(&table, "GET", path).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn the_first_segment_that_differs_decides() {
    let table = of_routes(&["/{a}/b/c", "/a/{b}/{c}", "/a/*"]);
    assert_eq!(pattern(&table, "GET", "/a/b/c").as_deref(), Some("/a/{b}/{c}"));
    assert_eq!(pattern(&table, "GET", "/x/b/c").as_deref(), Some("/{a}/b/c"));
    assert_eq!(pattern(&table, "GET", "/a/b").as_deref(), Some("/a/*"));
    // What begins well and ends nowhere is given up for what does not.
    let table = of_routes(&["/a/b/c", "/{x}/b/d"]);
    assert_eq!(pattern(&table, "GET", "/a/b/d").as_deref(), Some("/{x}/b/d"));
}

#[test]
fn a_route_with_the_method_goes_before_one_without() {
    let table = of_routes(&["/o", "POST /o", "GET /o", "/o/*", "DELETE /o/{id}"]);
    for (method, path, expected) in [
        ("POST", "/o", "POST /o"),
        ("post", "/o", "POST /o"),
        ("GET", "/o", "GET /o"),
        ("HEAD", "/o", "GET /o"),
        ("PUT", "/o", "/o"),
        ("", "/o", "/o"),
        ("DELETE", "/o/1", "DELETE /o/{id}"),
        ("GET", "/o/1", "/o/*"),
    ] {
        let found = pattern(&table, method, path);
        assert_eq!(found.as_deref(), Some(expected), "{method} {path}");
    }
    let table = of_routes(&["POST /o", "HEAD /o", "GET /o"]);
    assert_eq!(pattern(&table, "PUT", "/o"), None);
    assert_eq!(pattern(&table, "HEAD", "/o").as_deref(), Some("HEAD /o"));
}

#[test]
fn of_two_policies_with_one_route_the_first_by_name_has_it() {
    let table = table(&[("b", &["/x/{id}"]), ("a", &["/x/{name}", "GET /y"]), ("c", &["/y"])]);
    assert_eq!(table.find("GET", "/x/1").unwrap().policy().policy().name(), "a");
    assert_eq!(table.find("GET", "/y").unwrap().policy().policy().name(), "a");
    assert_eq!(table.find("PUT", "/y").unwrap().policy().policy().name(), "c");
}

#[test]
fn parameters_are_named_and_unescaped() {
    let table = of_routes(&["/users/{id}/posts/{post}"]);
    let matched = table.find("GET", "/users/a%20b/posts/%C3%A9?x=/y#z").unwrap();
    let params: Vec<_> = matched.params().collect();
    assert_eq!(params, [("id", "a b"), ("post", "é")]);
    assert_eq!((matched.param("post"), matched.param("x")), (Some("é"), None));
}

#[test]
fn however_a_path_is_written_it_is_the_same_route() {
    let table = of_routes(&["/api/users/{id}", "/health"]);
    for path in [
        "/api/users/7",
        "/api/users/7/",
        "//api//users///7",
        "/api/./users/7",
        "/health/../api/users/7",
        "/../../api/users/7",
        "/api/users/x/../7",
        "/%61pi/users/7",
        "/api/%75sers/7",
        "/health/%2e%2e/api/users/7",
        "/health/%2E./api/users/7",
        "/health/.%2e/api/users/7",
        "/api%2Fusers%2f7",
        "/health/..%2fapi/users/7",
        "/api\\users\\7",
        "/api%5Cusers/7",
        "/api;v=1/users;x/7",
        "/api/users/7;jsessionid=1",
        "/api/users/7?next=/health",
        "/api/users/7#/health",
        "http://example.com/api/users/7",
        "https://user@example.com:8443//api/users/7?x",
        "api/users/7",
    ] {
        let found = pattern(&table, "GET", path);
        assert_eq!(found.as_deref(), Some("/api/users/{id}"), "{path}");
    }
    for path in ["/api/users", "/api/users/7/8", "/api/users/%252e%252e/x", "/API/users/7", "*"] {
        assert_eq!(pattern(&table, "GET", path), None, "{path}");
    }
    assert_eq!(pattern(&table, "GET", "/?/api/users/7"), None, "a query is no path");
    assert_eq!(pattern(&table, "GET", "/health/://api/users/7"), None, "no scheme there");
}

#[test]
fn an_escaped_slash_is_inside_a_parameter_too() {
    let table = of_routes(&["/projects/{name}"]);
    let matched = table.find("GET", "/projects/group%2Frepo").unwrap();
    assert_eq!(matched.param("name"), Some("group/repo"));
    let table = of_routes(&["/projects/{name}", "/projects/group/repo"]);
    let matched = table.find("GET", "/projects/group%2Frepo").unwrap();
    assert_eq!(matched.pattern(), "/projects/group/repo", "the more specific reading");
}

#[test]
fn a_path_that_climbs_out_of_one_policy_into_another_is_deceptive() {
    let table = table(&[("search", &["/search/*"]), ("health", &["/health", "/health/*"])]);
    for (path, is_deceptive) in [
        ("/search/x%2f..%2f..%2fhealth", true),
        ("/search/..\\..\\health", true),
        ("/health/..%5csearch/x", true),
        ("/health/..;/search/x", true),
        ("/search/../health", false),
        ("/search/%2e%2e/health", false),
        ("/search/a%2Fb", false),
        ("/search/a%2F..%2Fb", false),
        ("/search/a;b", false),
        ("/search/x", false),
    ] {
        let matched = table.find("GET", path).unwrap();
        assert_eq!(matched.is_deceptive(), is_deceptive, "{path}");
    }
}

#[test]
fn a_huge_path_is_matched_like_any_other() {
    let table = of_routes(&["/a/*", "/{x}/{y}/{z}"]);
    let deep = format!("/a{}", "/x".repeat(500_000));
    assert_eq!(pattern(&table, "GET", &deep).as_deref(), Some("/a/*"));
    let wide = format!("/b/{}/c", "y".repeat(1_000_000));
    assert_eq!(pattern(&table, "GET", &wide).as_deref(), Some("/{x}/{y}/{z}"));
    assert_eq!(pattern(&table, "GET", &format!("/{}", "../".repeat(300_000))), None);
}

#[test]
fn a_bad_route_says_what_is_wrong() {
    for (text, why) in [
        ("", "begin with"),
        ("users", "begin with"),
        ("GET users", "begin with"),
        ("get /users", "capitals"),
        ("GET  /users", "begin with"),
        (" /users", "capitals"),
        ("/a b", "capitals"),
        ("/a//b", "single slashes"),
        ("/a/../b", "leads to"),
        ("/a/.", "leads to"),
        ("/*/a", "at its end"),
        ("/a*", "whole segments"),
        ("/a/{id}x", "whole segments"),
        ("/a/{}", "letters"),
        ("/a/{i-d}", "letters"),
        ("/{a}/{a}", "twice"),
        ("/a?b=1", "query"),
        ("/a#b", "query"),
        ("/a%20b", "escape"),
        ("/a;b", "no route can"),
        ("/a\\b", "no route can"),
        ("/a\u{0}", "no route can"),
    ] {
        let found = Route::parse(text).unwrap_err();
        assert!(found.contains(why), "{text:?}: {found}");
    }
    Route::parse(&format!("/{}", "x".repeat(MAX_ROUTE_BYTES))).unwrap_err();
    Route::parse(&"/x".repeat(MAX_SEGMENTS + 1)).unwrap_err();
    for text in ["/", "/*", "/a/", "/käse/{id}", "M-SEARCH /a", "/a.b/~c/{x_1}/*"] {
        Route::parse(text).unwrap();
    }
}

#[test]
fn every_bad_route_of_a_policy_is_listed_with_its_place() {
    let text = r#"routes = ["/ok", "bad", "/x/{a}", "/x/{b}", "/*/y"]
        limits = [{ name = "x", max = 1, per = "1s" }]"#;
    let faults = Policy::from_toml("p", text).unwrap_err().faults;
    let places: Vec<_> = faults.iter().map(|fault| fault.place.as_str()).collect();
    assert_eq!(places, ["routes[1]", "routes[3]", "routes[4]"]);
}

#[test]
fn in_one_file_a_route_is_of_one_policy() {
    let text = r#"
        [a]
        routes = ["/x/{id}"]
        limits = [{ name = "x", max = 1, per = "1s" }]
        [b]
        routes = ["/y", "/x/{name}"]
        limits = [{ name = "x", max = 1, per = "1s" }]"#;
    let faults = crate::policies_from_toml(text.parse().unwrap()).unwrap_err().faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].place, "policy.b.routes[1]");
}

/// Every route that a request falls under, found by looking at each alone.
fn all_matching<'a>(routes: &[&'a str], method: &str, path: &str) -> Vec<&'a str> {
    let matches = |route: &&&str| of_routes(&[route]).find(method, path).is_some();
    routes.iter().filter(matches).copied().collect()
}

const ROUTES: [&str; 12] = [
    "/",
    "/*",
    "/a",
    "/a/*",
    "GET /a/*",
    "/a/{x}",
    "POST /a/{x}",
    "/{x}/b",
    "/a/b",
    "/a/b/*",
    "/{x}/{y}/{z}",
    "/a/{x}/c",
];

proptest! {
    #[test]
    fn matching_is_total(method in ".{0,8}", path in ".{0,200}") {
        let table = of_routes(&ROUTES);
        // There is a route for everything, so there is an answer for everything.
        prop_assert!(table.find(&method, &path).is_some());
    }

    #[test]
    fn parsing_is_total(text in ".{0,60}") {
        if let Ok(route) = Route::parse(&text) {
            prop_assert_eq!(route.pattern(), text);
        }
    }

    #[test]
    fn the_table_answers_with_one_of_those_that_match_and_only_then(
        method in "GET|HEAD|POST|PUT",
        parts in proptest::collection::vec("a|b|c|\\.\\.|\\.|%2e%2E|%61|;x|", 0..5),
        separator in "/|//|%2F|\\\\",
        chosen in proptest::sample::subsequence(&ROUTES[..], 1..ROUTES.len()),
    ) {
        let path = format!("/{}", parts.join(&separator));
        let found = pattern(&of_routes(&chosen), &method, &path);
        let matching = all_matching(&chosen, &method, &path);
        match &found {
            Some(found) => prop_assert!(matching.contains(&found.as_str())),
            None => prop_assert!(matching.is_empty(), "{matching:?}"),
        }
    }

    #[test]
    fn segments_of_what_was_normalised_are_the_same(path in "[a-c./%2eF\\\\;]{0,40}") {
        let once = read(&path, Reading::Loose).segments;
        let plain = once.iter().all(|segment| segment.is_ascii() && !segment.contains(&b'%'));
        let joined: String =
            once.iter().map(|s| format!("/{}", String::from_utf8_lossy(s))).collect();
        if plain && !joined.contains(['\\', ';']) {
            prop_assert_eq!(&once, &read(&joined, Reading::Loose).segments);
            prop_assert_eq!(&once, &read(&joined, Reading::Strict).segments);
        }
    }
}

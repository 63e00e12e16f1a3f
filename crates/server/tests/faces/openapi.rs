//! `/openapi.json` says what is really served.

use serde_json::{Value, json};

use crate::support::slots::{NOON, SLOTS, event_body};
use crate::support::{Call, FOREVER, Reply, Server};

pub(crate) struct Api(Value);

impl Api {
    pub(crate) fn of(server: &Server) -> Self {
        Self(server.get("/openapi.json").ok())
    }

    /// The answer is one the operation lists, with a body of the schema listed for it.
    pub(crate) fn covers(&self, method: &str, path: &str, reply: &Reply) {
        let operation = &self.0["paths"][path][method];
        assert!(operation.is_object(), "{method} {path} is not described");
        let response = &operation["responses"][reply.status.to_string()];
        assert!(response.is_object(), "{method} {path} does not list {}", reply.status);
        let kind = reply.header("content-type").unwrap();
        let schema = &response["content"][kind]["schema"];
        assert!(schema.is_object(), "{method} {path} {} does not list {kind}", reply.status);
        if let Err(why) = self.fits(&reply.json(), schema) {
            panic!("{method} {path} {}: {why}\n{}", reply.status, reply.body);
        }
    }

    /// Required members are there, none is unknown, and types are right.
    fn fits(&self, value: &Value, schema: &Value) -> Result<(), String> {
        let fitting = |options: &Vec<Value>| {
            options.iter().filter(|option| self.fits(value, option).is_ok()).count()
        };
        if let Some(options) = schema["oneOf"].as_array() {
            let fits = fitting(options) == 1;
            return fits.then_some(()).ok_or(format!("{value} fits not just one of {options:?}"));
        }
        if let Some(options) = schema["anyOf"].as_array() {
            let fits = fitting(options) > 0;
            return fits.then_some(()).ok_or(format!("{value} fits none of {options:?}"));
        }
        let shape = self.resolve(schema);
        let Some(object) = value.as_object().filter(|_| !shape.properties.is_empty()) else {
            return self.fits_plain(value, schema, &shape);
        };
        for name in &shape.required {
            if !object.contains_key(name) {
                return Err(format!("{name} is required and missing"));
            }
        }
        for (name, member) in object {
            let known = shape.properties.iter().find(|(known, _)| known == name);
            let (_, schema) = known.ok_or(format!("{name} is not in the schema"))?;
            self.fits(member, schema).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    fn fits_plain(&self, value: &Value, schema: &Value, shape: &Shape) -> Result<(), String> {
        let is = |kind: &Value| match kind.as_str() {
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("boolean") => value.is_boolean(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            Some("null") => value.is_null(),
            _ => true,
        };
        let fits = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().any(is),
            kind => is(kind) && (shape.properties.is_empty() || value.is_object()),
        };
        if !fits {
            return Err(format!("{value} is not {}", schema["type"]));
        }
        let inner =
            if value.is_array() { &schema["items"] } else { &schema["additionalProperties"] };
        let members: Vec<&Value> = match value {
            Value::Array(items) => items.iter().collect(),
            Value::Object(object) => object.values().collect(),
            _ => Vec::new(),
        };
        members.into_iter().try_for_each(|member| self.fits(member, inner))
    }

    /// References followed, parts put together.
    fn resolve(&self, schema: &Value) -> Shape {
        let mut shape = Shape::default();
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self.0.pointer(reference.strip_prefix('#').unwrap()).unwrap();
            shape.add(self.resolve(target));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            shape.add(self.resolve(part));
        }
        let required = schema["required"].as_array().into_iter().flatten();
        shape.required.extend(required.map(|name| name.as_str().unwrap().to_owned()));
        let properties = schema["properties"].as_object().into_iter().flatten();
        shape.properties.extend(properties.map(|(name, schema)| (name.clone(), schema.clone())));
        shape
    }
}

#[derive(Default)]
struct Shape {
    required: Vec<String>,
    properties: Vec<(String, Value)>,
}

impl Shape {
    fn add(&mut self, other: Self) {
        self.required.extend(other.required);
        self.properties.extend(other.properties);
    }
}

fn limits(max: u64) -> Value {
    json!([{ "name": "u", "max": max, "per": FOREVER, "by": ["user"] }])
}

#[test]
fn it_is_openapi_3_1_and_lists_exactly_what_is_served() {
    let server = Server::memory();
    let api = Api::of(&server);
    assert!(api.0["openapi"].as_str().unwrap().starts_with("3.1."));
    assert!(api.0["info"]["title"].is_string() && api.0["info"]["version"].is_string());
    server.ask_slot("an-event", "default", NOON).ok();
    let mut listed = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for (path, methods) in api.0["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} stands for two operations");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let said = response["description"].as_str().unwrap_or_default();
                assert!(!said.is_empty(), "{id} {status} has no description");
            }
        }
        let methods: Vec<_> =
            methods.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        let real = path.replace("{name}", "default").replace("{eventId}", "an-event");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            let reply = server.send(Call::new(method, &real));
            let status = reply.status;
            // Of mail there is nothing yet, so its routes answer that what is named is missing.
            let is_missing = path.contains("{id}") && !reply.body.contains("there is nothing at");
            let served = status != 405 && (status != 404 || is_missing);
            // Deleting took the policy away; the route itself answered.
            server.policy("default", &json!([{ "name": "window", "max": 3, "per": "1h" }]));
            assert_eq!(methods.contains(&method.to_owned()), served, "{method} {path}: {status}");
        }
        listed.extend(methods.iter().map(|method| format!("{method} {path}")));
    }
    // Everything of the contract that this version has.
    for route in [
        "POST /api/v1/check",
        "POST /api/v1/peek",
        "POST /api/v1/refund",
        "POST /api/v1/slots",
        "GET /api/v1/slots",
        "POST /api/v1/slots/batch",
        "GET /api/v1/slots/{eventId}",
        "DELETE /api/v1/slots/{eventId}",
        "GET /api/v1/windows",
        "GET /admin/slots/verify",
        "POST /admin/rate-limit/config",
        "GET /admin/rate-limit/config",
        "POST /admin/rate-limit/cache/flush",
        "GET /admin/policies",
        "GET /admin/policies/{name}",
        "PUT /admin/policies/{name}",
        "DELETE /admin/policies/{name}",
        "GET /admin/policies/{name}/versions",
        "PUT /admin/overrides",
        "DELETE /admin/overrides",
        "GET /gate",
        "POST /gate",
        "GET /admin/offenders",
        "GET /admin/alerts",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "POST /tenant",
        "GET /tenants",
        "DELETE /tenant/{id}",
        "POST /tenant/{id}/token",
        "POST /account",
        "GET /accounts",
        "DELETE /account/{id}",
        "POST /commands/add-messages",
        "GET /messages",
        "POST /api/v1/send",
        "GET /api/v1/usage",
        "POST /commands/run-now",
        "POST /commands/suspend",
        "POST /commands/activate",
        "POST /commands/delete-messages",
        "POST /commands/cleanup-messages",
        "GET /status",
    ] {
        assert!(listed.iter().any(|listed| listed == route), "{route} is not in {listed:?}");
    }
}

/// Whoever validates an answer against both would find the members of one unknown to the other.
#[test]
fn nothing_is_composed_of_a_schema_that_allows_no_other_members() {
    let api = Api::of(&Server::memory()).0;
    let schemas = api["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        for part in schema["allOf"].as_array().into_iter().flatten() {
            let reference = part["$ref"].as_str().map(|path| path.strip_prefix('#').unwrap());
            let part = reference.map_or(part, |path| api.pointer(path).unwrap());
            assert_ne!(part["additionalProperties"], false, "{name} is made of a closed schema");
        }
    }
}

#[test]
fn a_path_that_is_no_text_has_the_answer_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    let paths = api.0["paths"].as_object().unwrap();
    for (path, methods) in paths.iter().filter(|(path, _)| path.contains('{')) {
        let (before, rest) = path.split_once('{').unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        for method in methods.as_object().unwrap().keys() {
            let call = Call::new(&method.to_uppercase(), &format!("{before}%FF{after}"));
            api.covers(method, path, &server.send(call));
        }
    }
}

#[test]
fn commands_that_may_say_it_in_the_query_need_no_body() {
    let server = Server::memory();
    let api = Api::of(&server).0;
    for name in ["run-now", "suspend", "activate", "delete-messages", "cleanup-messages"] {
        let body = &api["paths"][format!("/commands/{name}")]["post"]["requestBody"];
        assert_eq!(body["required"], false, "{name}");
    }
    let all = &api["paths"]["/commands/add-messages"]["post"]["requestBody"];
    assert_eq!(all["required"], true);
}

#[test]
fn decisions_and_refusals_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    server.policy("p", &limits(1));
    let ada = json!({ "user": "ada" });
    let allowed = server.check("p", &ada);
    api.covers("post", "/api/v1/check", &allowed);
    api.covers("post", "/api/v1/check", &server.check("p", &ada));
    api.covers("post", "/api/v1/check", &server.check("p", &json!({})));
    api.covers("post", "/api/v1/check", &server.check("nope", &ada));
    let peek = json!({ "policy": "p", "subject": ada });
    api.covers("post", "/api/v1/peek", &server.post("/api/v1/peek", &peek));
    let refund = json!({ "receipt": allowed.json()["receipt"] });
    for _ in 0..2 {
        api.covers("post", "/api/v1/refund", &server.post("/api/v1/refund", &refund));
    }
    let forged = server.post("/api/v1/refund", &json!({ "receipt": "x" }));
    api.covers("post", "/api/v1/refund", &forged);
    let large = Call::new("POST", "/api/v1/check").bytes(vec![b' '; 300_000]);
    api.covers("post", "/api/v1/check", &server.send(large));
    let key = |cost: u64| {
        let body = json!({ "policy": "p", "subject": { "user": "eve" }, "cost": cost });
        server.send(Call::post("/api/v1/check", &body).header("Idempotency-Key", "k"))
    };
    key(1).ok();
    let reused = key(2);
    assert_eq!(reused.status, 422);
    api.covers("post", "/api/v1/check", &reused);
}

#[test]
fn it_says_how_large_a_cost_may_be_and_that_nothing_unknown_may_be_sent() {
    let api = Server::memory().get("/openapi.json").ok();
    let schemas = &api["components"]["schemas"];
    for schema in ["CheckRequest", "Decision"] {
        let cost = &schemas[schema]["properties"]["cost"];
        assert_eq!((&cost["minimum"], &cost["maximum"]), (&json!(1), &json!(u32::MAX)), "{cost}");
        assert_ne!(cost["format"], "int32");
    }
    assert_eq!(schemas["CheckRequest"]["additionalProperties"], false);
}

#[test]
fn a_cost_that_never_fits_has_the_body_it_describes() {
    let server = Server::memory();
    server.policy("p", &limits(1));
    let never = server.check_cost("p", &json!({ "user": "ada" }), 2);
    assert_eq!(never.status, 422);
    Api::of(&server).covers("post", "/api/v1/check", &never);
}

#[test]
fn admin_calls_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    let path = "/admin/policies/{name}";
    let put = |max| server.put("/admin/policies/p", &json!({ "limits": limits(max) }));
    api.covers("put", path, &put(1));
    api.covers("put", path, &put(2));
    api.covers("get", path, &server.get("/admin/policies/p"));
    api.covers("get", path, &server.get("/admin/policies/nope"));
    api.covers("get", "/admin/policies", &server.get("/admin/policies"));
    let own = json!({ "policy": "p", "limit": "u", "subject": { "user": "ada" }, "max": 9 });
    api.covers("put", "/admin/overrides", &server.put("/admin/overrides", &own));
    api.covers("get", "/admin/overrides", &server.get("/admin/overrides"));
    let name = json!({ "policy": "p", "limit": "u", "subject": { "user": "ada" } });
    for _ in 0..2 {
        let reply = server.send(Call::new("DELETE", "/admin/overrides").json(&name));
        api.covers("delete", "/admin/overrides", &reply);
    }
    api.covers("delete", path, &server.delete("/admin/policies/p"));
    api.covers("delete", path, &server.delete("/admin/policies/p"));
    let versions = server.get("/admin/policies/p/versions");
    api.covers("get", "/admin/policies/{name}/versions", &versions);
    let config = json!({ "configName": "c", "maxPerWindow": 5, "windowSize": "PT4S" });
    let path = "/admin/rate-limit/config";
    api.covers("post", path, &server.post(path, &config));
    api.covers("post", path, &server.post(path, &json!({})));
    api.covers("get", path, &server.get(path));
    let path = "/admin/rate-limit/cache/flush";
    api.covers("post", path, &server.post(path, &json!({})));
    for path in ["/healthz", "/readyz"] {
        api.covers("get", path, &server.get(path));
    }
    let path = "/admin/tokens";
    for scope in ["check", "nonsense", "admin"] {
        api.covers("post", path, &server.post(path, &json!({ "scope": scope })));
    }
    api.covers("post", path, &server.post(path, &json!({ "scope": "check" })));
}

#[test]
fn a_bad_policy_has_the_body_it_describes() {
    let server = Server::memory();
    let bad = server.put("/admin/policies/p", &json!({ "limits": [] }));
    Api::of(&server).covers("put", "/admin/policies/{name}", &bad);
}

#[test]
fn operations_say_which_of_them_need_a_token() {
    let server = Server::memory();
    let api = Api::of(&server).0;
    let whole = api["security"].as_array().is_some_and(|list| !list.is_empty());
    let check = &api["paths"]["/api/v1/check"]["post"]["security"];
    assert!(whole || check.as_array().is_some_and(|list| !list.is_empty()));
}

#[test]
fn slots_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    server.short_config("full", 1);
    server.policy("p", &limits(1));
    for reply in [
        server.ask_slot("e", "full", NOON),
        server.ask_slot("f", "full", NOON),
        server.ask_slot("e", "default", NOON),
        server.ask_slot("f", "p", NOON),
        server.ask_slot("f", "unknown", NOON),
        server.ask_slot("", "default", NOON),
        server.send(Call::new("POST", SLOTS).bytes(vec![b' '; 300_000])),
    ] {
        api.covers("post", SLOTS, &reply);
    }
    let events = [event_body("g", "default", NOON), event_body("", "x", "x")];
    let path = "/api/v1/slots/batch";
    api.covers("post", path, &server.post(path, &json!({ "events": events })));
    api.covers("post", path, &server.post(path, &json!({ "events": [] })));
    let long = format!("{SLOTS}/{}", "x".repeat(256));
    for (method, path) in
        [("GET", "e"), ("DELETE", "e"), ("GET", "e"), ("GET", "x"), ("DELETE", "x")]
    {
        let reply = server.send(Call::new(method, &format!("{SLOTS}/{path}")));
        api.covers(&method.to_lowercase(), "/api/v1/slots/{eventId}", &reply);
    }
    api.covers("get", "/api/v1/slots/{eventId}", &server.get(&long));
    api.covers("delete", "/api/v1/slots/{eventId}", &server.delete(&long));
    for (path, queries) in [
        (SLOTS, ["", "?configName=full", "?configName=unknown", "?limit=0"]),
        ("/api/v1/windows", ["", "?configName=p", "?configName=unknown", "?from=x"]),
        ("/admin/slots/verify", ["", "?configName=p", "?configName=unknown", "?x=1"]),
    ] {
        for query in queries {
            api.covers("get", path, &server.get(&format!("{path}{query}")));
        }
    }
    server.ask_slot("h", "default", "2026-12-01T12:00:05Z").ok();
    api.covers("get", SLOTS, &server.get(&format!("{SLOTS}?limit=1")));
}

#[test]
fn offenders_and_alerts_have_the_bodies_it_describes() {
    let server = Server::memory();
    let api = Api::of(&server);
    server.policy("p", &limits(1));
    for _ in 0..9 {
        server.check("p", &json!({ "user": "ada" }));
    }
    for path in ["/admin/offenders", "/admin/alerts"] {
        for query in ["", "?limit=1", "?limit=0"] {
            api.covers("get", path, &server.get(&format!("{path}{query}")));
        }
    }
}

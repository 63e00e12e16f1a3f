//! Policies: one schema for the file, the HTTP interface and the command line.
//!
//! A document is validated whole: every fault is listed with its place, and a policy that exists
//! is valid.

pub(crate) mod duration;
pub(crate) mod fields;
mod limit;
pub(crate) mod schedule;

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use tollgate_core::Limit;
use tollgate_core::store::Durability;

use fields::{Fault, Fields};

use crate::routes::Route;
use crate::subject::Attributes;

/// A policy has at most this many limits.
pub const MAX_LIMITS: usize = 16;
/// A policy has at most this many routes.
const MAX_ROUTES: usize = 256;
/// Names of policies and limits are at most this long.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// A named set of limits, valid by construction.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    name: Arc<str>,
    limits: Vec<Limit>,
    on_store_error: OnStoreError,
    durability: Durability,
    routes: Vec<Route>,
    schedule: schedule::ScheduleSettings,
    /// As it was given, in canonical order.
    document: Value,
}

/// What a check answers while its store cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStoreError {
    /// An error.
    #[default]
    Refuse,
    /// Everything passes, uncounted.
    Allow,
    /// Counted in this instance's memory until the store is back: not exact.
    Local,
}

/// A document that is not a policy: every fault in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidPolicy {
    pub faults: Vec<Fault>,
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the policy is not valid: ")?;
        for (position, fault) in self.faults.iter().enumerate() {
            let separator = if position == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidPolicy {}

impl Policy {
    /// Reads a policy from a JSON document.
    pub fn from_json(name: &str, document: Value) -> Result<Self, InvalidPolicy> {
        let mut faults = Vec::new();
        let policy = read_policy(name, document, &mut faults);
        match policy {
            Some(policy) if faults.is_empty() => Ok(policy),
            _ => Err(InvalidPolicy { faults }),
        }
    }

    /// Reads a policy from TOML: what stands under `[policy.NAME]` in a configuration file.
    ///
    /// ```
    /// # use tollgate::Policy;
    /// let policy = Policy::from_toml("api", r#"limits = [{ name = "all", max = 5, per = "60s" }]"#)?;
    /// assert_eq!(policy.limits().len(), 1);
    /// # Ok::<(), tollgate::InvalidPolicy>(())
    /// ```
    pub fn from_toml(name: &str, text: &str) -> Result<Self, InvalidPolicy> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let fault = Fault { place: "document".into(), message: error.message().into() };
            InvalidPolicy { faults: vec![fault] }
        })?;
        Self::from_json(name, json_from_toml(toml::Value::Table(table)))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name for whoever keeps it longer than the policy.
    pub fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The routes it answers for, as they were given.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(Route::pattern)
    }

    pub(crate) fn parsed_routes(&self) -> &[Route] {
        &self.routes
    }

    /// Whether a check of this policy looks at an attribute: counts by it or has a `max_by` of it.
    pub fn looks_at(&self, attribute: &str) -> bool {
        self.limits.iter().any(|limit| {
            limit.by.iter().any(|by| by == attribute)
                || limit.max_by.as_ref().is_some_and(|max_by| max_by.attribute == attribute)
        })
    }

    /// The first attribute that a limit counts by and that a subject does not have.
    pub fn missing_from(&self, subject: Attributes<'_>) -> Option<&str> {
        let counted = self.limits.iter().flat_map(|limit| &limit.by);
        let is_missing = |name: &&String| !subject.iter().any(|(given, _)| given == name);
        counted.into_iter().find(is_missing).map(String::as_str)
    }

    pub(crate) fn schedule(&self) -> &schedule::ScheduleSettings {
        &self.schedule
    }

    /// Whether both do the same, however they are written.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self { name, limits, on_store_error, durability, routes, schedule, document: _ } = self;
        *name == other.name
            && *limits == other.limits
            && *on_store_error == other.on_store_error
            && *durability == other.durability
            && *routes == other.routes
            && *schedule == other.schedule
    }

    /// The document it was read from; two equal ones are the same policy.
    pub fn document(&self) -> &Value {
        &self.document
    }
}

fn read_policy(name: &str, document: Value, faults: &mut Vec<Fault>) -> Option<Policy> {
    if let Err(message) = check_name(name) {
        faults.push(Fault { place: "name".into(), message });
    }
    let mut fields = Fields::of(document.clone(), String::new(), faults)?;
    let on_store_error = fields.text("on_store_error").and_then(|text| {
        fields.parse("on_store_error", &text, |text| match text {
            "refuse" => Ok(OnStoreError::Refuse),
            "allow" => Ok(OnStoreError::Allow),
            "local" => Ok(OnStoreError::Local),
            _ => Err(format!("must be \"refuse\", \"allow\" or \"local\", not {text:?}")),
        })
    });
    let durability = fields.text("durability").and_then(|text| {
        fields.parse("durability", &text, |text| match text {
            "interval" => Ok(Durability::Interval),
            "sync" => Ok(Durability::Sync),
            _ => Err(format!("must be \"interval\" or \"sync\", not {text:?}")),
        })
    });
    let routes = read_routes(&mut fields);
    let schedule = fields.take("schedule").map(|schedule| {
        let place = fields.place_of("schedule");
        schedule::read_schedule(schedule, place, fields.faults())
    });
    let given = fields.list("limits");
    if given.is_none() {
        fields.fault("limits", "is required: a list of at least one limit");
    }
    let given = given.unwrap_or_default();
    if given.len() > MAX_LIMITS {
        fields.fault("limits", format!("has {} limits; {MAX_LIMITS} are possible", given.len()));
    }
    let (mut limits, mut names): (Vec<Limit>, Vec<String>) = Default::default();
    for (position, value) in given.into_iter().enumerate() {
        let place = format!("limits[{position}]");
        if let Some(name) = value.get("name").and_then(Value::as_str) {
            if names.iter().any(|other| other == name) {
                fields.fault(&format!("{place}.name"), format!("{name:?} names two limits"));
            }
            names.push(name.to_owned());
        }
        limits.extend(limit::read_limit(value, place, fields.faults()));
    }
    if limits.is_empty() && fields.faults().is_empty() {
        fields.fault("limits", "is empty: a policy has at least one limit");
    }
    if let Some(Some(settings)) = &schedule
        && !limits.is_empty()
        && let Err(why) = settings.plan(&limits)
    {
        fields.fault("schedule", why);
    }
    fields.finish();
    Some(Policy {
        name: name.into(),
        limits,
        on_store_error: on_store_error.unwrap_or_default(),
        durability: durability.unwrap_or_default(),
        routes,
        schedule: schedule.flatten().unwrap_or_default(),
        document,
    })
}

fn read_routes(fields: &mut Fields<'_>) -> Vec<Route> {
    let given = fields.texts("routes").unwrap_or_default();
    if given.len() > MAX_ROUTES {
        fields.fault("routes", format!("has {} routes; {MAX_ROUTES} are possible", given.len()));
    }
    let mut routes: Vec<Route> = Vec::new();
    for (position, text) in given.iter().enumerate() {
        let place = format!("routes[{position}]");
        let Some(route) = fields.parse(&place, text, Route::parse) else { continue };
        if routes.iter().any(|other| other.is_same(&route)) {
            fields.fault(&place, format!("{text:?} is there twice"));
        }
        routes.push(route);
    }
    routes
}

/// Names appear in paths, headers and metrics, so they are plain.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        Err(format!("must be 1 to {MAX_NAME_BYTES} characters long"))
    } else if [".", ".."].contains(&name) {
        Err(format!("{name:?} means a folder in a path"))
    } else if !name.bytes().all(plain) {
        Err(format!("{name:?} may hold only letters, digits and . _ - :"))
    } else {
        Ok(())
    }
}

/// The policies of a configuration file: what stands under `[policy.NAME]`.
pub fn policies_from_toml(table: toml::Table) -> Result<Vec<Policy>, InvalidPolicy> {
    let mut faults = Vec::new();
    let mut policies = Vec::new();
    for (name, value) in table {
        match Policy::from_json(&name, json_from_toml(value)) {
            Ok(policy) => policies.push(policy),
            Err(invalid) => faults.extend(invalid.faults.into_iter().map(|fault| Fault {
                place: format!("policy.{name}.{}", fault.place),
                message: fault.message,
            })),
        }
    }
    faults.extend(shared_routes(&policies));
    if faults.is_empty() { Ok(policies) } else { Err(InvalidPolicy { faults }) }
}

/// In one file nobody can mean two policies to have one route.
fn shared_routes(policies: &[Policy]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (count, policy) in policies.iter().enumerate() {
        for (position, route) in policy.routes.iter().enumerate() {
            let has = |other: &&Policy| other.routes.iter().any(|other| other.is_same(route));
            if let Some(other) = policies[..count].iter().find(has) {
                let place = format!("policy.{}.routes[{position}]", policy.name);
                let pattern = route.pattern();
                let message = format!("{pattern:?} is a route of policy {:?} too", other.name);
                faults.push(Fault { place, message });
            }
        }
    }
    faults
}

fn json_from_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        // A bare date is the same as a quoted one.
        toml::Value::Datetime(datetime) => Value::String(datetime.to_string()),
        toml::Value::Array(items) => items.into_iter().map(json_from_toml).collect(),
        toml::Value::Table(table) => Value::Object(
            table
                .into_iter()
                .map(|(name, value)| (name, json_from_toml(value)))
                .collect::<Map<_, _>>(),
        ),
    }
}

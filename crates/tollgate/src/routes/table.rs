//! All routes of the policies in force, as a tree of segments.
//!
//! Built when the catalogue is read, and only then. A look-up visits each node at most once, so it
//! costs no more than there are routes, however long the path is.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::path::{self, Read, Reading, Segments};
use super::{Matched, Route, Segment};
use crate::compiled::Compiled;

#[derive(Debug, Default)]
pub(crate) struct Table {
    root: Node,
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<[u8]>, Node, foldhash::fast::RandomState>,
    parameter: Option<Box<Node>>,
    /// Routes that end here, and those that go on with `*`.
    exact: Vec<Entry>,
    prefix: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    route: Arc<Route>,
    policy: Arc<Compiled>,
}

/// What one reading of a path leads to.
struct Found {
    matched: Matched,
    rank: Rank,
    climbs: usize,
}

/// How specific a match is: what each of its segments was matched by, and its end.
type Rank = SmallVec<[Step; 12]>;

/// In the order in which they are preferred.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Literal,
    Parameter,
    End,
    Rest,
}

impl Table {
    /// Policies in any order: of equal routes, the policy whose name sorts first has it.
    pub(crate) fn new<'a>(policies: impl Iterator<Item = &'a Arc<Compiled>>) -> Self {
        let mut policies: Vec<_> = policies.collect();
        policies.sort_by(|a, b| a.policy().name().cmp(b.policy().name()));
        let mut table = Self::default();
        for policy in policies {
            for route in policy.policy().parsed_routes() {
                table.add(route, policy);
            }
        }
        table
    }

    fn add(&mut self, route: &Route, policy: &Arc<Compiled>) {
        let mut node = &mut self.root;
        for segment in &route.segments {
            node = match segment {
                Segment::Literal(text) => node.literals.entry(text.as_bytes().into()).or_default(),
                Segment::Parameter(_) => node.parameter.get_or_insert_default(),
            };
        }
        let entries = if route.is_prefix { &mut node.prefix } else { &mut node.exact };
        if let Some(first) = entries.iter().find(|entry| entry.route.method == route.method) {
            let (has, wants) = (first.policy.policy().name(), policy.policy().name());
            let pattern = &*route.pattern;
            tracing::warn!(pattern, has, wants, "two policies have this route; the first has it");
            return;
        }
        entries.push(Entry { route: Arc::new(route.clone()), policy: policy.clone() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        let Node { literals, parameter, exact, prefix } = &self.root;
        literals.is_empty() && parameter.is_none() && exact.is_empty() && prefix.is_empty()
    }

    /// The most specific route for a request, by whichever reading of its path.
    pub(crate) fn find(&self, method: &str, target: &str) -> Option<Matched> {
        if self.is_empty() {
            return None;
        }
        let path = path::of_target(target);
        let strict = self.find_read(method, path, Reading::Strict);
        if !path::is_ambiguous(path) {
            return strict.map(|found| found.matched);
        }
        let loose = self.find_read(method, path, Reading::Loose);
        match (strict, loose) {
            (Some(strict), Some(loose)) => {
                let name = |found: &Found| found.matched.policy.policy().name().to_owned();
                let is_deceptive = strict.climbs != loose.climbs && name(&strict) != name(&loose);
                let found = if strict.rank < loose.rank { strict } else { loose };
                Some(Matched { is_deceptive, ..found.matched })
            }
            (strict, loose) => loose.or(strict).map(|found| found.matched),
        }
    }

    fn find_read(&self, method: &str, path: &str, reading: Reading) -> Option<Found> {
        let Read { segments, climbs } = path::read(path, reading);
        let mut rank = Rank::new();
        let entry = self.root.find(method, &segments, &mut rank)?;
        Some(Found { matched: entry.matched(&segments), rank, climbs })
    }
}

impl Node {
    /// Goes as deep as routes do, not as paths do.
    fn find(
        &self,
        method: &str,
        rest: &[std::borrow::Cow<'_, [u8]>],
        rank: &mut Rank,
    ) -> Option<&Entry> {
        if let Some((segment, rest)) = rest.split_first() {
            let literal = self.literals.get(&**segment).map(|node| (Step::Literal, node));
            let parameter = self.parameter.as_deref().map(|node| (Step::Parameter, node));
            for (step, node) in literal.into_iter().chain(parameter) {
                rank.push(step);
                if let Some(entry) = node.find(method, rest, rank) {
                    return Some(entry);
                }
                rank.pop();
            }
        } else if let Some(entry) = of_method(&self.exact, method) {
            rank.push(Step::End);
            return Some(entry);
        }
        let entry = of_method(&self.prefix, method)?;
        rank.push(Step::Rest);
        Some(entry)
    }
}

/// With the method before without; `HEAD` is answered by `GET` if it has nothing of its own.
fn of_method<'a>(entries: &'a [Entry], method: &str) -> Option<&'a Entry> {
    let with =
        |wanted: Option<&str>| entries.iter().find(|entry| entry.route.method.as_deref() == wanted);
    let own = entries.iter().find(|entry| {
        entry.route.method.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(method))
    });
    let by_get = || with(Some("GET")).filter(|_| method.eq_ignore_ascii_case("HEAD"));
    own.or_else(by_get).or_else(|| with(None))
}

impl Entry {
    fn matched(&self, segments: &Segments<'_>) -> Matched {
        let values = self
            .route
            .parameters()
            .map(|(position, _)| String::from_utf8_lossy(&segments[position]).into_owned())
            .collect();
        Matched {
            policy: self.policy.clone(),
            route: self.route.clone(),
            values,
            is_deceptive: false,
        }
    }
}

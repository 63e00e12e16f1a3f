//! A subject in a request's body: read strictly, and not copied where it can be lent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use smallvec::SmallVec;

/// Attributes as they stand in the body: not copied unless they hold escapes.
#[derive(Default)]
pub(crate) struct Subject<'a>(SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>);

impl Subject<'_> {
    pub(crate) fn into_owned(self) -> Vec<(String, String)> {
        let owned =
            |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        self.0.into_iter().map(owned).collect()
    }

    pub(crate) fn pairs(&self) -> SmallVec<[(&str, &str); 8]> {
        self.0.iter().map(|(name, value)| (&**name, &**value)).collect()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Subject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Pairs<'a> {
            type Value = Subject<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of attributes and their values, all text")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = SmallVec::new();
                while let Some((name, value)) = map.next_entry::<Text<'a>, Text<'a>>()? {
                    if pairs.len() >= tollgate::MAX_ATTRIBUTES {
                        return Err(A::Error::custom("too many attributes"));
                    }
                    pairs.push((name.0, value.0));
                }
                Ok(Subject(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// A borrowed text where serde_json can lend one.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

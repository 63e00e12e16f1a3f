//! Where the attributes of a subject come from.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::net::IpAddr;

use http::HeaderName;
use http::request::Parts;

use crate::proxies::TrustedProxies;
use crate::subject::Subject;

/// Adds attributes of a request to its subject. What it does not find it leaves out; a limit that counts
/// by it then answers 401.
pub trait Key: Send + Sync {
    fn add<'a>(&'a self, parts: &'a Parts, subject: &mut Subject<'a>);
}

impl<F> Key for F
where
    F: for<'a> Fn(&'a Parts, &mut Subject<'a>) + Send + Sync,
{
    fn add<'a>(&'a self, parts: &'a Parts, subject: &mut Subject<'a>) {
        self(parts, subject);
    }
}

/// A header's value. Any client can write any header: use it only for what is no secret and no
/// identity, or behind a proxy that sets it and lets nobody else in. A header that is there twice is
/// left out.
///
/// # Panics
/// If `name` is not a header's name in lower case.
pub fn header(name: &'static str, attribute: &'static str) -> impl Key {
    let name = HeaderName::from_static(name);
    Header { name, attribute }
}

struct Header {
    name: HeaderName,
    attribute: &'static str,
}

impl Key for Header {
    fn add<'a>(&'a self, parts: &'a Parts, subject: &mut Subject<'a>) {
        let mut values = parts.headers.get_all(&self.name).iter();
        if let (Some(value), None) = (values.next(), values.next())
            && let Ok(text) = std::str::from_utf8(value.as_bytes())
            && !text.trim().is_empty()
        {
            subject.add(self.attribute, text.trim());
        }
    }
}

/// What another layer, or the server, put into the request's extensions: a verified user, axum's
/// `MatchedPath` as the attribute `route`.
pub fn extension<T, F>(attribute: &'static str, value: F) -> impl Key
where
    T: Clone + Send + Sync + 'static,
    F: for<'a> Fn(&'a T) -> Cow<'a, str> + Send + Sync,
{
    Extension { attribute, value, of: PhantomData }
}

struct Extension<T, F> {
    attribute: &'static str,
    value: F,
    of: PhantomData<fn(&T)>,
}

impl<T, F> Key for Extension<T, F>
where
    T: Clone + Send + Sync + 'static,
    F: for<'a> Fn(&'a T) -> Cow<'a, str> + Send + Sync,
{
    fn add<'a>(&'a self, parts: &'a Parts, subject: &mut Subject<'a>) {
        if let Some(found) = parts.extensions.get::<T>() {
            subject.add(self.attribute, (self.value)(found));
        }
    }
}

/// The client's address as the attribute `ip`, found behind trusted proxies by `X-Forwarded-For`.
/// `peer` says who is connected; in axum,
/// `|parts| parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())`.
pub fn client_ip<F>(trusted: TrustedProxies, peer: F) -> impl Key
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync,
{
    ClientIp { trusted, peer }
}

struct ClientIp<F> {
    trusted: TrustedProxies,
    peer: F,
}

impl<F: Fn(&Parts) -> Option<IpAddr> + Send + Sync> Key for ClientIp<F> {
    fn add<'a>(&'a self, parts: &'a Parts, subject: &mut Subject<'a>) {
        let Some(peer) = (self.peer)(parts) else { return };
        let forwarded = parts.headers.get_all("x-forwarded-for").iter();
        // What is not text is no address either.
        let forwarded = forwarded.map(|value| value.to_str().unwrap_or("-"));
        subject.add("ip", self.trusted.client(peer, forwarded).to_string());
    }
}

//! Which address a request came from, where proxies stand in between.
//!
//! Anybody can write anything into `X-Forwarded-For`; what a proxy appends to it is true if that proxy
//! is. So the list is walked from the right, and only as long as the one who wrote an entry is
//! trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Networks whose word about others is believed.
///
/// ```
/// use tollgate::TrustedProxies;
/// let trusted = TrustedProxies::new(["10.0.0.0/8", "::1"])?;
/// let peer = "10.0.0.2".parse().expect("an address");
/// let client = trusted.client(peer, ["198.51.100.1, 203.0.113.7, 10.0.0.1"]);
/// assert_eq!(client.to_string(), "203.0.113.7");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustedProxies(Vec<Network>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network {
    /// IPv4 as IPv6 has it, so that there is one kind.
    first: u128,
    mask: u128,
}

impl TrustedProxies {
    /// Networks as `10.0.0.0/8` or single addresses; the error says which is neither.
    pub fn new<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, String> {
        networks
            .into_iter()
            .map(|text| Network::parse(text.as_ref()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = bits(address);
        self.0.iter().any(|network| bits & network.mask == network.first)
    }

    /// The address of the client, given that of the peer and the values of `X-Forwarded-For` (or a
    /// header like it) in the order in which they came. What an untrusted peer says is not looked
    /// at; an entry that is no address ends the walk.
    pub fn client<'a, I>(&self, peer: IpAddr, forwarded: I) -> IpAddr
    where
        I: IntoIterator<Item = &'a str>,
        I::IntoIter: DoubleEndedIterator,
    {
        let mut client = peer.to_canonical();
        let entries = forwarded.into_iter().rev().flat_map(|value| value.rsplit(','));
        for entry in entries {
            if !self.contains(client) {
                break;
            }
            let Some(before) = parse_entry(entry.trim()) else { break };
            client = before.to_canonical();
        }
        client
    }
}

/// Some proxies write the port too.
fn parse_entry(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')).unwrap_or(entry);
    bare.parse().ok().or_else(|| entry.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

impl Network {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address and no network such as 10.0.0.0/8");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let whole: u32 = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => whole,
            Some(length) => length.parse().ok().filter(|l| *l <= whole).ok_or_else(wrong)?,
        };
        let mask = u128::MAX.checked_shl(whole - length).unwrap_or(0);
        let bits = bits(address);
        if bits & mask != bits {
            let first = Ipv6Addr::from(bits & mask);
            let first = match first.to_ipv4_mapped() {
                Some(first) if address.is_ipv4() => IpAddr::V4(first),
                _ => IpAddr::V6(first),
            };
            return Err(format!("{text:?} has bits behind its network; write {first}/{length}"));
        }
        Ok(Self { first: bits, mask })
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address).to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(trusted: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let trusted = TrustedProxies::new(trusted).unwrap();
        trusted.client(peer.parse().unwrap(), forwarded.iter().copied()).to_string()
    }

    #[test]
    fn nobody_is_believed_unless_named() {
        assert_eq!(client(&[], "127.0.0.1", &["203.0.113.7"]), "127.0.0.1");
        assert_eq!(client(&["10.0.0.0/8"], "11.0.0.1", &["203.0.113.7"]), "11.0.0.1");
    }

    #[test]
    fn the_list_is_walked_from_the_right_through_trusted_proxies() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"];
        for (peer, forwarded, expected) in [
            ("10.0.0.1", &["203.0.113.7"][..], "203.0.113.7"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.7,10.0.0.9 , 192.0.2.1"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7", "10.0.0.9"], "203.0.113.7"),
            ("2001:db8::1", &["2001:dead::1"], "2001:dead::1"),
            ("::ffff:10.0.0.1", &["::ffff:203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &["203.0.113.7:4711"], "203.0.113.7"),
            ("10.0.0.1", &["[2001:dead::1]:4711"], "2001:dead::1"),
            ("10.0.0.1", &["[2001:dead::1]"], "2001:dead::1"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
        ] {
            assert_eq!(client(&trusted, peer, forwarded), expected, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn what_is_no_address_ends_the_walk() {
        for forwarded in ["unknown", "", "203.0.113.7, unknown", "203.0.113.7,", "1.2.3.4.5", "_x"]
        {
            assert_eq!(
                client(&["10.0.0.1"], "10.0.0.1", &[forwarded]),
                "10.0.0.1",
                "{forwarded:?}"
            );
        }
    }

    #[test]
    fn a_network_that_is_none_is_named() {
        for text in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "localhost", "10.0.0.0/-1", "1.1.1.1/"]
        {
            let why = TrustedProxies::new([text]).unwrap_err();
            assert!(why.contains(&format!("{text:?}")), "{why}");
        }
        let why = TrustedProxies::new(["10.1.2.3/8"]).unwrap_err();
        assert!(why.contains("10.0.0.0/8"), "{why}");
        let all = TrustedProxies::new(["0.0.0.0/0"]).unwrap();
        assert!(all.contains("8.8.8.8".parse().unwrap()));
        assert!(!all.contains("2001:db8::1".parse().unwrap()), "another family");
        assert!(TrustedProxies::new(["::/0"]).unwrap().contains("8.8.8.8".parse().unwrap()));
    }
}

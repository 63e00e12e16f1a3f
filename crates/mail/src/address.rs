//! Addresses as they are given, and as they travel.

use lettre::Address;
use lettre::message::Mailbox;

/// `ada@example.org` or `Ada <ada@example.org>`; the domain in small letters and ASCII, in the form that
/// every server knows (`xn--…`). Two are the same if they are the same then, letter by letter: what
/// stands before the @ is the receiver's matter.
pub(crate) fn mailbox(given: &str) -> Result<Mailbox, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{given:?} is not an address: {error}");
    let mut mailbox: Mailbox = given.parse().map_err(|error| wrong(&error))?;
    let written = mailbox.email.domain();
    let domain = if written.is_ascii() {
        written.to_ascii_lowercase()
    } else {
        idna::domain_to_ascii(written).map_err(|error| wrong(&error))?
    };
    if domain != written {
        let address = Address::new(mailbox.email.user(), domain);
        mailbox.email = address.map_err(|error| wrong(&error))?;
    }
    Ok(mailbox)
}

#[cfg(test)]
mod tests {
    use super::mailbox;

    #[test]
    fn a_domain_travels_in_small_letters_and_in_ascii() {
        let email = |given: &str| mailbox(given).map(|mailbox| mailbox.email.to_string());
        assert_eq!(email("Ada <ada@München.de>").unwrap(), "ada@xn--mnchen-3ya.de");
        assert_eq!(email("Ada@Example.org").unwrap(), "Ada@example.org");
        assert_eq!(email("jürgen@例え.jp").unwrap(), "jürgen@xn--r8jz45g.jp");
        assert!(email("ada@").is_err());
    }
}

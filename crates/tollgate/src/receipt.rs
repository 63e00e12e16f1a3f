//! Receipts: a signed token that names exactly what one decision spent.
//!
//! Issuing one writes nothing; the signature is what keeps a holder from inventing spends.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use tollgate_core::store::{Key, Receipt, SpendId, Spent};
use tollgate_core::{Cost, Malformed, Reader, Writer};

use crate::compiled::Keys;
use crate::error::Error;
use crate::policy::MAX_LIMITS;
use crate::secret::{Keyed, MAC_BYTES};

const VERSION: u8 = 1;

/// The token for an allowed decision.
pub(crate) fn issue(spent: &Spent, cost: Cost, keys: &Keys<'_>, signer: &Keyed) -> String {
    let mut bytes = Vec::with_capacity(128);
    let mut writer = Writer(&mut bytes);
    writer.byte(VERSION);
    writer.uint(u128::from(spent.id.run));
    writer.uint(u128::from(spent.id.sequence));
    writer.uint(u128::from(cost.get()));
    writer.uint(spent.spends.len() as u128);
    for (position, spend) in spent.spends.iter().enumerate() {
        writer.key(keys.get(position));
        writer.spend(spend);
    }
    let mac = signer.mac(&[&bytes]);
    bytes.extend_from_slice(&mac);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What the token says, if this store signed it.
pub(crate) fn verify(token: &str, signer: &Keyed) -> Result<Receipt, Error> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim()).map_err(|_| Error::BadReceipt)?;
    let (signed, mac) = bytes
        .len()
        .checked_sub(MAC_BYTES)
        .and_then(|end| bytes.split_at_checked(end))
        .ok_or(Error::BadReceipt)?;
    if !bool::from(signer.mac(&[signed]).ct_eq(mac)) {
        return Err(Error::BadReceipt);
    }
    decode(signed).map_err(|_| Error::BadReceipt)
}

fn decode(bytes: &[u8]) -> Result<Receipt, Malformed> {
    let mut reader = Reader(bytes);
    if reader.byte()? != VERSION {
        return Err(Malformed);
    }
    let id = SpendId { run: reader.u64()?, sequence: reader.u64()? };
    let cost = u32::try_from(reader.u64()?).ok().and_then(Cost::new).ok_or(Malformed)?;
    let length = reader.u64()?;
    if length > MAX_LIMITS as u64 {
        return Err(Malformed);
    }
    let mut spends = Vec::with_capacity(length as usize);
    for _ in 0..length {
        let key = Key::parse(reader.bytes()?).ok_or(Malformed)?;
        spends.push((key.to_vec(), reader.spend()?));
    }
    reader.end()?;
    Ok(Receipt { id, cost, spends })
}

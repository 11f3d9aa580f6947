//! A vendor whose API a route calls, and what it promises about keys.

use std::time::Duration;

use data_encoding::HEXLOWER;
use http::{HeaderName, HeaderValue};

use oncegate_domain::ids::RecordId;
use oncegate_domain::place::Place;

/// The promises of a vendor.
#[derive(Clone, Debug)]
pub struct VendorRule {
    /// The hosts of its API; `*.` stands for any name before the rest.
    pub hosts: Vec<Box<str>>,
    /// The key that it reads; `None` where it reads none.
    pub key: Option<VendorKey>,
    /// The time from a request for which a repetition under its key executes nothing; `None` where it promises none.
    pub window: Option<Duration>,
}

/// The key that a vendor reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorKey {
    /// Its place: a field, or a member of the JSON body.
    pub place: Place,
    /// The longest key, in characters.
    pub length_max: usize,
    /// Whether it must be a UUID.
    pub is_uuid: bool,
}

impl VendorRule {
    /// Whether a host is one of its API.
    pub fn has_host(&self, host: &str) -> bool {
        let is_host = |known: &str| match known.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == known,
        };
        self.hosts.iter().any(|known| is_host(known))
    }
}

impl VendorKey {
    /// The field of the key; `None` where it is in the body.
    pub fn field(&self) -> Option<&HeaderName> {
        match &self.place {
            Place::Header(name, None) => Some(name),
            _ => None,
        }
    }

    /// The key at the vendor: the caller's, or a UUID of the record (RFC 9562, section 5.8) where the vendor would not
    /// take that, or several callers share a credential.
    pub fn name(&self, key: &[u8], id: &RecordId, is_shared: bool) -> HeaderValue {
        let own =
            (!self.is_uuid && !is_shared && key.len() <= self.length_max).then(|| HeaderValue::from_bytes(key).ok());
        own.flatten().unwrap_or_else(|| {
            let mut bytes: [u8; 16] = id.as_bytes()[..16].try_into().expect("an id is longer");
            bytes[6] = bytes[6] & 0x0f | 0x80;
            bytes[8] = bytes[8] & 0x3f | 0x80;
            let hex = HEXLOWER.encode(&bytes);
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            HeaderValue::from_str(&parts.join("-")).expect("hex is plain ASCII")
        })
    }
}

//! Reads and checks `secret` and `previous_secrets`.

use super::reader::{Section, Text};
use oncegate_domain::fingerprint::{Secret, Secrets};

/// 128 bits, if they are random. With a shorter secret, somebody could find a short body by trying all secrets.
const SECRET_BYTES_MIN: usize = 16;

pub(super) fn read(section: &Section<'_>) -> Option<Secrets> {
    let current = section.text("secret").and_then(|text| read_secret(section, text));
    let previous = section.texts("previous_secrets");
    let previous: Option<Vec<_>> =
        previous.and_then(|previous| previous.into_iter().map(|text| read_secret(section, text?)).collect());
    let (current, previous) = (current?, previous?);
    let previous: Vec<_> = previous.into_iter().flatten().collect();
    if current.is_none() && !previous.is_empty() {
        // The first of the secrets is the current one: without it, an earlier one would be used as the current one.
        section.problem("previous_secrets", "needs a `secret` that comes after these");
    }
    Some(Secrets::new(current.into_iter().chain(previous)))
}

/// Reads a secret; `Some(None)` for an empty text, which an unset variable leaves. Problems never show the text.
fn read_secret(section: &Section<'_>, text: Text) -> Option<Option<Secret>> {
    match text.value.len() {
        0 => Some(None),
        SECRET_BYTES_MIN.. => Some(Some(Secret::new(&text.value))),
        _ => {
            let message = "is too short to be secret: 16 bytes at least, such as `openssl rand -base64 32` prints";
            section.reader().problem(&text.position, message);
            None
        }
    }
}

//! The store's rows, as anything that can write to the database may have left them.

use bytes::Bytes;
use http::HeaderMap;
use oncegate_domain::response::CorruptRow;
use oncegate_domain::response::StoredResponse;
use oncegate_domain::state::KeyState;
use oncegate_store::row::{FoundRecord, RowReader, StoredValue};

use super::bytes_reader::BytesReader;

const STATES: [&str; 8] = ["completed", "dead", "expired", "in_flight", "queued", "retryable", "unknown", "?"];

/// Checks a row whose columns are taken from the input: it decodes or is corrupt, and no
/// response that it decodes to is split.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let present = input.byte();
    let is_present = |bit: u8| present & (1 << bit) != 0;
    // Mostly rows of the right size: there is little to see behind another one's first check.
    let sized = |bytes: &'static [u8], other: &'static [u8]| if is_present(7) { other } else { bytes };
    let state = STATES[usize::from(input.byte()) % STATES.len()];
    let (attempt, expires_at, now) = (input.number(), input.number(), input.number());
    let status = i64::from(input.byte()) + i64::from(input.byte() % 3) * 256;
    let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
    let (recipe, recovery_point) = (text(input.text()), text(input.text()));
    let body = Bytes::copy_from_slice(input.text());
    let fields = input.rest();
    use StoredValue::{Bytes as Blob, Number, Text};
    let row = InputRow([
        ("id", Some(Blob(sized(&[1; 32], &[1; 31])))),
        ("attempt", Some(Number(if is_present(0) { attempt } else { 1 }))),
        ("token", Some(Blob(sized(&[2; 16], &[2; 17])))),
        ("recipe", Some(Text(if is_present(1) { recipe } else { "1" }))),
        ("fingerprint", Some(Blob(sized(&[3; 32], &[])))),
        ("state", Some(Text(state))),
        ("reserved_at", Some(Number(attempt))),
        ("deadline", Some(Number(now))),
        ("settled_at", is_present(4).then_some(Number(attempt))),
        ("expires_at", (state == "completed" || is_present(6)).then_some(Number(expires_at))),
        ("remember_ms", is_present(2).then_some(Number(expires_at))),
        ("accepted_at", is_present(6).then_some(Number(expires_at))),
        ("recovery_point", is_present(5).then_some(Text(recovery_point))),
        ("status", Some(Number(status))),
        ("fields", Some(Blob(fields))),
        ("body", Some(Blob(&body))),
    ]);
    if let Ok(found) = FoundRecord::read(&row, now) {
        if let KeyState::Completed(completed) = found.record.state {
            check_response(&completed.response, fields);
        }
        let stored = found.record.recipe.to_stored().to_owned();
        let read = oncegate_domain::fingerprint::Recipe::from_stored(&stored);
        assert_eq!(read, Some(found.record.recipe), "{stored}");
    }
    let block = Bytes::copy_from_slice(fields);
    if let Ok(response) = StoredResponse::decode(200, &block, Some(body)) {
        check_response(&response, fields);
    }
}

fn check_response(response: &StoredResponse, fields: &[u8]) {
    assert!((200..600).contains(&response.status.as_u16()));
    for (name, value) in response.headers.iter().chain(&response.trailers) {
        let is_split = |bytes: &[u8]| bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        assert!(!is_split(name.as_str().as_bytes()) && !is_split(value.as_bytes()), "{name}: {value:?}");
    }
    // One line for each field, and the empty one between fields and trailers.
    let lines = fields.windows(2).filter(|bytes| *bytes == b"\r\n").count();
    assert_eq!(response.headers.len() + response.trailers.len() + 1, lines);
    let encoded = Bytes::from(response.encode_fields());
    let decoded = StoredResponse::decode(200, &encoded, None).expect("what is encoded decodes");
    let map = |headers: &HeaderMap| headers.iter().map(|(n, v)| (n.clone(), v.clone())).collect::<Vec<_>>();
    assert_eq!(map(&decoded.headers), map(&response.headers));
    assert_eq!(map(&decoded.trailers), map(&response.trailers));
}

/// A row of columns from the input.
struct InputRow<'a>([(&'static str, Option<StoredValue<'a>>); 16]);

impl RowReader for InputRow<'_> {
    fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow> {
        let found = self.0.iter().find(|(name, _)| *name == column);
        found.map(|(_, value)| *value).ok_or(CorruptRow(column))
    }
}

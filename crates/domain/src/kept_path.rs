//! The part of a request's target that its record keeps, as it is stored.
//!
//! Where reconciliation asks the service by the path, that is the whole target. Everywhere else it is the path alone,
//! for people: a query may have credentials, and a path may have kilobytes, which anybody could fill the store with. No
//! lookup uses such a path.

use bytes::Bytes;

pub const PATH_BYTES_MAX: usize = 256;

/// The first byte of a path for people. A whole target never begins with it (RFC 9112 section 3.2).
const FOR_PEOPLE: &str = " ";

/// Keeps a whole target: the path and the query as they were sent.
pub fn keep_target(target: &str) -> Bytes {
    Bytes::copy_from_slice(target.as_bytes())
}

/// Keeps the beginning of a path for people: 256 bytes at most.
pub fn keep_path(path: &str) -> Bytes {
    let cut = &path[..path.floor_char_boundary(PATH_BYTES_MAX)];
    let end = if cut.len() < path.len() { "…" } else { "" };
    [FOR_PEOPLE, cut, end].concat().into()
}

/// The whole target; `None` where only a path for people was kept.
pub fn whole_target(kept: &[u8]) -> Option<&[u8]> {
    Some(kept).filter(|kept| !kept.starts_with(FOR_PEOPLE.as_bytes()))
}

/// The path as people see it, without a query.
pub fn shown_path(kept: &[u8]) -> String {
    let text = String::from_utf8_lossy(kept.strip_prefix(FOR_PEOPLE.as_bytes()).unwrap_or(kept));
    text.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_target_is_asked_with_and_a_path_for_people_is_not() {
        let target = keep_target("/pay/7?token=secret");
        assert_eq!(whole_target(&target), Some(&b"/pay/7?token=secret"[..]));
        assert_eq!(shown_path(&target), "/pay/7");
        let path = keep_path("/pay/7");
        assert_eq!(whole_target(&path), None);
        assert_eq!(shown_path(&path), "/pay/7");
    }

    #[test]
    fn a_long_path_is_cut_between_characters() {
        let longest = format!("/{}", "a".repeat(255));
        assert_eq!(shown_path(&keep_path(&longest)), longest);
        assert_eq!(shown_path(&keep_path(&format!("{longest}b"))), format!("{longest}…"));
        let wide = format!("/{}ü", "a".repeat(254));
        assert_eq!(shown_path(&keep_path(&wide)), format!("/{}…", "a".repeat(254)));
    }
}

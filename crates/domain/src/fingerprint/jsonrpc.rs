//! The canonical form of a JSON-RPC request: its method and its parameters. The id is another one for each try, and so
//! may be `_meta`, in which clients put the key, the version of their protocol and a token for progress.

use canonical_json::{Pointer, Selection, canonicalize_selected};

use crate::jsonrpc::{RpcMessage, is_declared, locate_content};

/// The values of the method and the parameters that the selection keeps. `None` for a body that is no single request,
/// or does not say that it is of JSON-RPC 2.0, as a document of another API with a member `method`: it is compared as
/// any other.
pub(super) fn canonical(body: &[u8], selection: &Selection) -> Option<Vec<u8>> {
    if !is_declared(body) {
        return None;
    }
    let (RpcMessage::Call(_) | RpcMessage::Notification(_)) = RpcMessage::read(body, false, Vec::new) else {
        return None;
    };
    let pointer = |text| Pointer::parse(text).expect("it starts with a slash");
    let mut selection = selection.clone();
    if selection.include.is_empty() {
        selection.include.extend(["/method", "/params"].map(pointer));
    }
    selection.exclude.push(pointer("/params/_meta"));
    if let Ok(canonical) = canonicalize_selected(body, &selection) {
        return Some(canonical.into());
    }
    // JSON without a canonical form, as with half of a surrogate pair, is compared as sent, but for the id.
    let content = locate_content(body)?;
    Some(canonicalize_selected(&content, &selection).map_or_else(|_| content.clone(), Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Option<Vec<u8>> {
        let exclude = vec![Pointer::parse("/params/at").unwrap()];
        canonical(body.as_bytes(), &Selection { exclude, ..Selection::default() })
    }

    #[test]
    fn a_retry_with_another_id_and_other_metadata_is_the_same_request() {
        let first = of(r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"amount":5,"_meta":{"progressToken":1}}}"#);
        assert!(first.is_some());
        for (body, is_same) in [
            (r#"{"id":"b","params":{"amount":5.0},"method":"pay","jsonrpc":"2.0"}"#, true),
            (r#"{"jsonrpc":"2.0","id":2,"method":"pay","params":{"_meta":{},"amount":5,"at":7}}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"amount":6}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"refund","params":{"amount":5}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"amount":5,"a":{"_meta":1}}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pay"}"#, false),
            // Members beside those of a message, as of a trace, and what has no canonical form outside of the
            // parameters.
            (r#"{"traceparent":"x","jsonrpc":"2.0","id":2,"method":"pay","params":{"amount":5},"retry":1}"#, true),
            (r#"{"jsonrpc":"2.0","id":"\ud83d","method":"pay","params":{"amount":5},"_trace":"\ud83d"}"#, true),
            (r#"{"jsonrpc":"2.0","id":2,"method":"pay","params":{"amount":5,"_meta":{"a":1,"a":"\udc00"}}}"#, true),
        ] {
            assert_eq!(of(body) == first, is_same, "{body}");
        }
        let first =
            of(r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"to":"\ud83d","_meta":{"progressToken":1}}}"#);
        assert!(first.is_some());
        for (body, is_same) in [
            (r#"{"params":{"to":"\ud83d"},"id":"b","jsonrpc":"2.0","method":"pay"}"#, true),
            (r#"{"jsonrpc":"2.0","id":2,"method":"pay","params": { "_meta": {}, "to": "\ud83d" },"retry":2}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"to":"\ud83e"}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pay","params":{"to":"\ud83d","amount":5}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":"refund","params":{"to":"\ud83d"}}"#, false),
        ] {
            assert_eq!(of(body) == first, is_same, "{body}");
        }
        for no_request in [
            r#"[{"id":1,"method":"pay"}]"#,
            r#"{"amount":5}"#,
            r#"{"id":1,"result":1}"#,
            r#"{"id":1,"method":"pay"}"#,
            "",
            "pay",
        ] {
            assert_eq!(of(no_request), None, "{no_request}");
        }
    }
}

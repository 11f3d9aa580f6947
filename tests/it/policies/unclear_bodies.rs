//! Bodies that the gate and the service may read in different ways: none of them goes around the guard of its route, or hides its key.

use crate::harness::{Response, Store, World};

/// The refusal's status and slug, in whatever form its dialect has it.
fn refusal(response: &Response) -> (u16, String) {
    let text = response.text().to_ascii_lowercase().replace('_', "-");
    let slugs = ["bad-request", "key-invalid", "key-missing"];
    let slug = slugs.into_iter().find(|slug| text.contains(slug)).unwrap_or_else(|| panic!("{response:?}"));
    (response.status, slug.to_owned())
}

const REQUIRED: &str = "key = { required = true }";
const SOME: &str = "key = { required = true }\noperations = [\"pay\"]";
const PAY_ALONE: &str = "key = { required = true }\noperations = [\"tools/call pay\"]";

#[tokio::test]
async fn a_body_with_more_than_a_message_has_is_guarded_in_each_dialect() {
    for (dialect, lines, body) in [
        // A service of the REST binding of UCP ignores members that it does not know.
        ("ucp", REQUIRED, r#"{"items":[1],"jsonrpc":"2.0","id":1,"method":"ping"}"#),
        ("ucp", REQUIRED, r#"{"items":[1],"jsonrpc":"2.0","id":1,"result":1}"#),
        ("ucp", REQUIRED, r#"{"items":[1],"jsonrpc":"2.0","method":"ping"}"#),
        ("ucp", REQUIRED, r#"{"items":[1],"jsonrpc":"2.0","id":true,"method":"ping"}"#),
        ("ucp", REQUIRED, "[]"),
        ("jsonrpc", SOME, r#"{"jsonrpc":"2.0","id":1,"method":"show","action":"pay"}"#),
        ("mcp", REQUIRED, r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","tool":"pay"}"#),
        ("mcp", REQUIRED, r#"{"jsonrpc":"2.0","id":1,"result":{},"call":"tools/call"}"#),
        ("mcp", PAY_ALONE, r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["pay"]}}"#),
        ("mcp", PAY_ALONE, r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["pay"]}"#),
        ("a2a", REQUIRED, r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","message":{}}"#),
        ("graphql", REQUIRED, r#"{"query":"{ a }","id":"pay"}"#),
        ("graphql", REQUIRED, r#"{"query":"{ a }","documentId":"pay"}"#),
        ("graphql", REQUIRED, r#"{"query":"{ a }","variables":{},"Variables":{}}"#),
        ("graphql", REQUIRED, r#"[{"query":"{ a }"},{"query":"{ a }","queryId":"pay"}]"#),
    ] {
        let world = World::guarding(Store::sqlite(), &format!("dialect = \"{dialect}\"\n{lines}")).await;
        let post = || world.post("/pay").json(body);
        assert_eq!(refusal(&post().send().await).1, "key-missing", "{dialect} {body}");
        for status in ["executed", "replayed"] {
            assert_eq!(post().key("k-1").send().await.oncegate_status(), Some(status), "{dialect} {body}");
        }
        assert_eq!(world.upstream.calls(), 1, "{dialect} {body}");
    }
    let batch = r#"[{"items":[1],"jsonrpc":"2.0","id":1,"method":"ping"}]"#;
    let world = World::guarding(Store::sqlite(), &format!("dialect = \"ucp\"\n{REQUIRED}")).await;
    for request in [world.post("/pay").json(batch), world.post("/pay").json(batch).key("k-1")] {
        assert_eq!(refusal(&request.send().await), (400, "bad-request".into()));
    }
    assert_eq!(world.upstream.calls(), 0);
}

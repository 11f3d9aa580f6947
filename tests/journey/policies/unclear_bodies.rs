//! Bodies that the gate and the service may read in different ways: none of them goes around the guard of its route, or
//! hides its key.

use harness::{Answer, Request, Response, Store, World};

/// A world whose service answers calls and requests of other APIs.
async fn world(lines: &str) -> World {
    let world = World::guarding(Store::sqlite(), lines).await;
    world.upstream.answer_all(
        Answer::status(201)
            .field("Content-Type", "application/json")
            .body(r#"{"jsonrpc":"2.0","id":1,"result":1,"data":{}}"#),
    );
    world
}

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
        let world = world(&format!("dialect = \"{dialect}\"\n{lines}")).await;
        let post = || world.post("/pay").json(body);
        assert_eq!(refusal(&post().send().await).1, "key-missing", "{dialect} {body}");
        for status in ["executed", "replayed"] {
            assert_eq!(post().key("k-1").send().await.oncegate_status(), Some(status), "{dialect} {body}");
        }
        assert_eq!(world.upstream.calls(), 1, "{dialect} {body}");
    }
    let world = world(&format!("dialect = \"ucp\"\n{REQUIRED}")).await;
    for body in [
        r#"[{"items":[1],"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        r#"{"items":[1],"jsonrpc":"2.0","method":"ping"}"#,
        r#"{"items":[1],"jsonrpc":"2.0","id":true,"method":"ping"}"#,
    ] {
        for request in [world.post("/pay").json(body), world.post("/pay").json(body).key("k-1")] {
            assert_eq!(refusal(&request.send().await), (400, "bad-request".into()), "{body}");
        }
    }
    assert_eq!(world.upstream.calls(), 0);
}

/// The text in UTF-16, with a byte order mark.
fn utf16(text: &str) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

#[tokio::test]
async fn a_body_in_another_encoding_hides_neither_an_operation_nor_a_key() {
    let tool = r#"{"jsonrpc":"2.0","id":1,"method":"+AHQ-ools/call","params":{"name":"pay"}}"#;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"+AHQ-ools/call"}"#;
    let mutation = r#"{"query":"{ a }"}"#;
    let (in_body, in_form) = ("key = { from = \"json:/id\" }", "key = { from = \"form:id\" }");
    let in_both = "key = { from = [\"form:id\", \"json:/id\"] }";
    let of = |dialect: &str| format!("dialect = \"{dialect}\"\n{REQUIRED}");
    let (unsupported, missing) = ((415, "bad-request"), (400, "key-missing"));
    let invalid = (400, "key-invalid");
    let json = "application/json";
    let form = "application/x-www-form-urlencoded";
    for (lines, media_type, body, expected) in [
        (of("mcp"), "application/json; charset=utf-7", tool.into(), unsupported),
        (of("mcp"), "application/json; a=b;Charset = \"utf-7\"", tool.into(), unsupported),
        (of("mcp"), "application/json; charset=utf-8; charset=utf-7", tool.into(), unsupported),
        (of("mcp"), "application/json, text/plain charset=unicode_escape", tool.into(), unsupported),
        (of("mcp"), json, utf16(&tool.replace("+AHQ-", "t")), invalid),
        (of("jsonrpc"), "application/json; charset=utf-16", utf16(call), unsupported),
        (of("jsonrpc"), json, utf16(call), missing),
        (of("a2a"), "application/json; charset=utf-7", call.into(), unsupported),
        (of("ucp"), "application/json; charset=utf-7", tool.into(), unsupported),
        (of("graphql"), "application/json; charset=utf-7", mutation.into(), missing),
        (of("graphql"), json, utf16(mutation), missing),
        (in_body.into(), "application/json; charset=utf-7", r#"{"+AGk-d":"k-1"}"#.into(), invalid),
        (in_body.into(), json, utf16(r#"{"id":"k-1"}"#), invalid),
        (in_form.into(), "application/x-www-form-urlencoded; charset=utf-7", "%2BAGk-d=k-1".into(), invalid),
        (in_form.into(), form, utf16("id=k-1"), invalid),
        (in_form.into(), "application/x-www-form-urlencoded; charset=IBM037", "\u{89}\u{84}~".into(), invalid),
        (in_both.into(), form, utf16(r#"{"id":"k-1"}"#), invalid),
        (format!("dialect = \"mcp\"\n{in_body}"), json, utf16(r#"{"id":"k-1"}"#), invalid),
    ] {
        let world = World::guarding(Store::sqlite(), &lines).await;
        let post = || world.post("/pay").field("Content-Type", media_type).body(body.clone());
        let (status, slug) = refusal(&post().send().await);
        assert_eq!((status, &*slug), expected, "{lines} {media_type}");
        assert_eq!(world.upstream.calls(), 0, "{lines} {media_type}");
    }
    // The document of a field says nothing of its encoding, and is read as UTF-8 alone.
    let world = World::guarding(Store::sqlite(), "key = { from = \"header:X-Order#/id\" }").await;
    let order = data_encoding::BASE64.encode(&utf16(r#"{"id":"k-1"}"#));
    assert_eq!(refusal(&world.post("/pay").field("X-Order", &order).send().await), (400, "key-invalid".into()));
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn names_of_encodings_in_which_ascii_is_ascii_change_nothing() {
    let tool = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}"#;
    for charset in ["utf-8", "UTF-8", "\"utf-8\"", "utf8", "us-ascii", "ISO-8859-1"] {
        let world = world(&format!("dialect = \"mcp\"\n{REQUIRED}")).await;
        let post = |body: &str| -> Request {
            world.post("/pay").field("Content-Type", &format!("application/json; charset={charset}")).body(body)
        };
        assert_eq!(post(tool).key("k-1").send().await.oncegate_status(), Some("executed"), "{charset}");
        let listing = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert_eq!(post(listing).send().await.oncegate_status(), None, "{charset}");
        let world = World::guarding(Store::sqlite(), "key = { from = \"form:id\" }").await;
        let form = format!("application/x-www-form-urlencoded; charset={charset}");
        let pay = world.post("/pay").field("Content-Type", &form).body("id=k-1").send().await;
        assert_eq!(pay.oncegate_status(), Some("executed"), "{charset}");
    }
}

//! Fingerprint settings: the parts of a request in which a retry must be equal.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, GzBuilder};
use http_body_util::Full;

use harness::h2::connect;
use harness::{Request, Store, World, on_both_stores, route};

const OLD: &str = "an old secret of 32 bytes, or so";
const NEW: &str = "the new secret that comes after";

async fn oncegate_status(request: Request) -> String {
    request.send().await.oncegate_status().unwrap().to_owned()
}

/// A world whose route `/pay` has this fingerprint.
async fn printed(fingerprint: &str) -> World {
    World::guarding(Store::sqlite(), &format!("fingerprint = {{ {fingerprint} }}")).await
}

fn typed(world: &World, kind: &str, body: &str) -> Request {
    world.post("/pay").key("k-1").field("Content-Type", kind).body(body)
}

#[tokio::test]
async fn a_form_is_compared_as_ordered_pairs() {
    let world = printed("").await;
    let form = |body: &str| oncegate_status(typed(&world, "application/x-www-form-urlencoded; charset=UTF-8", body));
    assert_eq!(form("a=1&b=x+y&b=%C3%A9&c=").await, "executed");
    assert_eq!(form("a=%31&b=x%20y&b=%c3%a9&c=").await, "replayed");
    for other in ["a=1&b=%C3%A9&b=x+y&c=", "a=1&b=x+y&b=%C3%A9", "a=1&b=x+y&b=%C3%A9&c=&c=", "a=1%26b=x+y&b=%C3%A9&c="]
    {
        assert_eq!(form(other).await, "key-reused", "{other}");
    }
}

#[tokio::test]
async fn a_multipart_form_is_compared_by_its_parts() {
    let world = printed("").await;
    let form = |boundary: &str, parts: &[(&str, &str, &str)]| {
        let mut body = String::new();
        for (disposition, kind, value) in parts {
            body.push_str(&format!("--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n"));
            body.push_str(&format!("Content-Type: {kind}\r\n\r\n{value}\r\n"));
        }
        body.push_str(&format!("--{boundary}--\r\n"));
        oncegate_status(typed(&world, &format!("multipart/form-data; boundary=\"{boundary}\""), &body))
    };
    let (name, file) =
        (("name=\"a\"", "text/plain", "1"), ("name=\"f\"; filename=\"a.png\"", "image/png", "\u{1}\r\n-"));
    assert_eq!(form("one", &[name, file]).await, "executed");
    assert_eq!(form("another", &[name, file]).await, "replayed");
    assert_eq!(form("one", &[file, name]).await, "replayed", "fields count by their names");
    for other in [
        vec![name],
        vec![name, ("name=\"f\"; filename=\"b.png\"", file.1, file.2)],
        vec![name, (file.0, "image/gif", file.2)],
        vec![name, (file.0, file.1, "\u{1}\r\n")],
        vec![("name=\"b\"", name.1, name.2), file],
    ] {
        assert_eq!(form("one", &other).await, "key-reused", "{other:?}");
    }
}

#[tokio::test]
async fn excluded_values_do_not_count() {
    let world = printed(r#"exclude = ["json:/sent_at", "json:/items/*/seen"]"#).await;
    let send = |body: &str| oncegate_status(world.post("/pay").key("k-1").json(body));
    assert_eq!(send(r#"{"sent_at":1,"items":[{"sku":"a","seen":1},{"sku":"b"}]}"#).await, "executed");
    assert_eq!(send(r#"{"sent_at":2,"items":[{"sku":"a"},{"sku":"b","seen":[]}]}"#).await, "replayed");
    assert_eq!(send(r#"{"items":[{"sku":"a"},{"sku":"c"}]}"#).await, "key-reused");
    assert_eq!(send(r#"{"items":[{"sku":"a"},{"sku":"b"}],"more":1}"#).await, "key-reused");
}

#[tokio::test]
async fn with_included_values_nothing_else_counts() {
    let world = printed(r#"include = ["json:/amount", "json:/items/*/sku"]"#).await;
    let send = |body: &str| oncegate_status(world.post("/pay").key("k-1").json(body));
    assert_eq!(send(r#"{"amount":1,"items":[{"sku":"a"},{"sku":"b"}],"note":"x"}"#).await, "executed");
    assert_eq!(send(r#"{"items":[{"sku":"a","n":1},{"sku":"b"}],"amount":1.0}"#).await, "replayed");
    assert_eq!(send(r#"{"items":[{"sku":"b"},{"sku":"a"}],"amount":1}"#).await, "key-reused");
    assert_eq!(send(r#"{"items":[{"sku":"a"}],"amount":1}"#).await, "key-reused");
    assert_eq!(send(r#"{"amount":2,"items":[{"sku":"a"},{"sku":"b"}]}"#).await, "key-reused");
}

#[tokio::test]
async fn listed_header_fields_count() {
    let world = printed(r#"headers = ["X-Tenant"]"#).await;
    let send = |tenants: &[&str]| {
        oncegate_status(tenants.iter().fold(world.pay("k-1"), |request, tenant| request.field("X-Tenant", tenant)))
    };
    assert_eq!(send(&["a", "b"]).await, "executed");
    assert_eq!(send(&["a", "b"]).await, "replayed");
    for other in [&["b", "a"][..], &["a"], &["a, b"], &[], &["A", "b"]] {
        assert_eq!(send(other).await, "key-reused", "{other:?}");
    }
    assert_eq!(
        oncegate_status(world.pay("k-1").field("x-tenant", "a").field("X-TENANT", "b").field("X-Other", "1")).await,
        "replayed"
    );
}

#[tokio::test]
async fn an_ignored_query_may_differ() {
    let world = printed("query = false").await;
    let send = |target: &str| oncegate_status(world.post(target).key("k-1").body("x"));
    assert_eq!(send("/pay?try=1").await, "executed");
    assert_eq!(send("/pay?try=2").await, "replayed");
    assert_eq!(send("/pay").await, "replayed");
}

#[tokio::test]
async fn a_body_counts_by_the_routes_setting() {
    let (json, spaced, other) = (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1.0 }"#, r#"{"a":2,"b":2}"#);
    for (rule, kind, same, differs) in [
        ("auto", "application/vnd.shop.v1+json", vec![json, spaced], vec![other]),
        ("auto", "text/json", vec![json], vec![spaced]),
        ("none", "application/json", vec![json, spaced, other, ""], vec![]),
        ("raw", "application/json", vec![json], vec![spaced, other]),
        ("json", "text/plain", vec![json, spaced], vec![other]),
        ("json", "text/plain", vec!["no JSON"], vec!["no  JSON"]),
        ("form", "text/plain", vec!["a=x+y", "a=x%20y"], vec!["a=xy"]),
        ("auto", "application/json", vec![r#"{"a":1,"a":1}"#], vec![r#"{"a":1, "a":1}"#]),
    ] {
        let world = printed(&format!("body = \"{rule}\"")).await;
        for (number, body) in same.iter().enumerate() {
            let expected = if number == 0 { "executed" } else { "replayed" };
            assert_eq!(oncegate_status(typed(&world, kind, body)).await, expected, "{rule} {kind}: {body}");
        }
        for body in differs {
            assert_eq!(oncegate_status(typed(&world, kind, body)).await, "key-reused", "{rule} {kind}: {body}");
        }
    }
}

fn gzip(content: &[u8], mtime: u32) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(mtime).write(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn an_encoded_body_is_compared_by_its_content() {
    let world = printed("").await;
    let send = |key: &str, coding: &str, body: &[u8]| {
        let request = world.post("/pay").key(key).json("").field("Content-Encoding", coding).body(body);
        oncegate_status(request)
    };
    let small = br#"{"a":1,"b":[2]}"#;
    // Larger than what is decoded on the worker's own thread.
    let large = format!(r#"{{"a":[{}1]}}"#, (0..20_000).map(|n| format!("{n},")).collect::<String>());
    for (key, content) in [("small", &small[..]), ("large", large.as_bytes())] {
        assert_eq!(send(key, "gzip", &gzip(content, 1)).await, "executed");
        assert_eq!(world.upstream.last().body, gzip(content, 1), "it is forwarded as it was sent");
        assert_eq!(send(key, "gzip", &gzip(content, 2)).await, "replayed", "{key}");
        let spaced = String::from_utf8_lossy(content).replace(',', " , ");
        assert_eq!(send(key, "x-gzip", &gzip(spaced.as_bytes(), 2)).await, "replayed", "{key}");
        assert_eq!(send(key, "identity", content).await, "replayed", "{key}");
        let other = String::from_utf8_lossy(content).replace('1', "3");
        assert_eq!(send(key, "gzip", &gzip(other.as_bytes(), 1)).await, "key-reused", "{key}");
        assert_eq!(send(key, "identity", &gzip(content, 1)).await, "key-reused", "{key}");
    }
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_encoded_body_that_is_not_decoded_is_compared_byte_by_byte() {
    let world = printed("").await;
    let send = |key: &str, coding: &str, body: &[u8]| {
        oncegate_status(world.post("/pay").key(key).json("").field("Content-Encoding", coding).body(body))
    };
    // A content of 20 MiB in 20 KiB.
    let zeros = vec![b'0'; 20 << 20];
    for (key, coding, body, same_content) in [
        ("bomb", "gzip", gzip(&zeros, 1), gzip(&zeros, 2)),
        ("brotli", "br", br#"{"a":1}"#.to_vec(), br#"{"a": 1}"#.to_vec()),
        ("chain", "gzip, gzip, gzip", gzip(&gzip(&gzip(b"1", 1), 1), 1), gzip(&gzip(&gzip(b"1", 1), 1), 2)),
    ] {
        assert_eq!(send(key, coding, &body).await, "executed", "{key}");
        assert_eq!(send(key, coding, &body).await, "replayed", "{key}");
        assert_eq!(send(key, coding, &same_content).await, "key-reused", "{key}");
        assert_eq!(send(key, "identity", &body).await, "key-reused", "{key}");
    }
    assert_eq!(world.upstream.calls(), 3);
}

#[tokio::test]
async fn a_batch_is_compared_by_its_parts_whatever_their_boundaries() {
    let world = printed("").await;
    let batch = |outer: &str, inner: &str, amount: u32| {
        let request =
            format!("Content-Type: application/http\r\n\r\nPOST /pay HTTP/1.1\r\n\r\n{{\"amount\":{amount}}}");
        let changeset = format!("--{inner}\r\n{request}\r\n--{inner}--\r\n");
        let body = format!(
            "--{outer}\r\nContent-Type: multipart/mixed; boundary={inner}\r\n\r\n{changeset}\r\n--{outer}--\r\n"
        );
        oncegate_status(typed(&world, &format!("multipart/mixed; boundary={outer}"), &body))
    };
    assert_eq!(batch("batch_1", "changeset_1", 1).await, "executed");
    assert_eq!(batch("batch_22", "changeset_22", 1).await, "replayed");
    assert_eq!(batch("batch_1", "changeset_1", 2).await, "key-reused");
    let related = |start: &str| {
        let kind = format!("multipart/related; boundary=batch_1; start=\"{start}\"");
        let body = "--batch_1\r\nContent-ID: <a>\r\n\r\n1\r\n--batch_1--";
        oncegate_status(world.post("/pay").key("k-2").field("Content-Type", &kind).body(body))
    };
    assert_eq!(related("<a>").await, "executed");
    assert_eq!(related("<a>").await, "replayed");
    assert_eq!(related("<b>").await, "key-reused");
}

#[tokio::test]
async fn a_field_counts_over_http_1_1_and_http_2_alike() {
    let world = printed(r#"headers = ["host", "cookie"]"#).await;
    let mut client = connect(&world).await;
    let mut over_http_2 = async |host: &str, cookies: &[&str]| {
        let request = http::Request::post(format!("http://{host}/pay")).header("authorization", "Bearer test");
        let request = cookies.iter().fold(request, |request, cookie| request.header("cookie", *cookie));
        let request = request.header("idempotency-key", "k-1").body(Full::new(Bytes::from_static(b"x")));
        let response = client.send_request(request.unwrap()).await.unwrap();
        response.headers()["oncegate-status"].to_str().unwrap().to_owned()
    };
    let over_http_1 = |host: &str, cookie: &str| {
        oncegate_status(world.post("/pay").key("k-1").body("x").host(host).field("Cookie", cookie))
    };
    assert_eq!(over_http_1("shop.example", "a=1; b=2").await, "executed");
    assert_eq!(over_http_2("shop.example", &["a=1", "b=2"]).await, "replayed");
    assert_eq!(over_http_2("Shop.example", &["a=1; b=2"]).await, "replayed");
    assert_eq!(over_http_1("SHOP.example", "a=1; b=2").await, "replayed");
    assert_eq!(over_http_2("other.example", &["a=1", "b=2"]).await, "key-reused");
    assert_eq!(over_http_2("shop.example", &["b=2", "a=1"]).await, "key-reused");
    assert_eq!(over_http_1("other.example", "a=1; b=2").await, "key-reused");
    assert_eq!(world.upstream.calls(), 1);
}

on_both_stores!(a_retry_is_compared_by_the_recipe_of_its_first_attempt);
async fn a_retry_is_compared_by_the_recipe_of_its_first_attempt(store: Store) {
    let with = |lines: &str| route("pay", lines);
    let mut world = World::with(store, |setup| {
        setup.route(&with(r#"fingerprint = { include = ["json:/a", "json:/at"], exclude = ["json:/at"] }"#))
    })
    .await;
    let send = |world: &World, key: &str, body: &str| oncegate_status(world.post("/pay").key(key).json(body));
    assert_eq!(send(&world, "old", r#"{"a":1,"at":1}"#).await, "executed");
    world.restart_as(|setup| setup.route(&with(r#"fingerprint = { body = "raw" }"#))).await;
    assert_eq!(send(&world, "old", r#"{ "at": 2, "a": 1 }"#).await, "replayed");
    assert_eq!(send(&world, "old", r#"{"a":2,"at":1}"#).await, "key-reused");
    assert_eq!(send(&world, "new", r#"{"a":1,"at":1}"#).await, "executed");
    assert_eq!(send(&world, "new", r#"{"a":1, "at":1}"#).await, "key-reused");
    world.restart_as(|setup| setup.route(&with(r#"fingerprint = { body = "none", query = false }"#))).await;
    assert_eq!(send(&world, "old", r#"{"a":1}"#).await, "replayed");
    assert_eq!(send(&world, "old", r#"{"a":3}"#).await, "key-reused");
    assert_eq!(send(&world, "new", r#"{"a":1,"at":1}"#).await, "replayed");
    assert_eq!(send(&world, "new", r#"{"at":1,"a":1}"#).await, "key-reused");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(a_secret_rotation_loses_no_key);
async fn a_secret_rotation_loses_no_key(store: Store) {
    let mut world = World::with(store, |setup| setup.top(&format!("secret = {OLD:?}"))).await;
    let first = world.pay("old").send().await;
    assert_eq!(world.pay("old").send().await.comparable(), first.replayed());
    world.restart_as(|setup| setup.top(&format!("secret = {NEW:?}\nprevious_secrets = [{OLD:?}]"))).await;
    assert_eq!(world.pay("old").send().await.comparable(), first.replayed());
    assert_eq!(oncegate_status(world.pay("old").body("other")).await, "key-reused");
    assert_eq!(oncegate_status(world.pay("new")).await, "executed");
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn a_newly_configured_secret_keeps_earlier_keys_valid() {
    let mut world = World::start(Store::sqlite()).await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "executed");
    world.restart_as(|setup| setup.top(&format!("secret = {NEW:?}"))).await;
    assert_eq!(oncegate_status(world.pay("k-1")).await, "replayed");
    assert_eq!(oncegate_status(world.pay("k-2")).await, "executed");
    assert_eq!(world.proxy.stop().await, Some(0));
    let store = rusqlite::Connection::open(world.store.sqlite_file()).unwrap();
    let mut rows = store.prepare("select recipe, fingerprint from keys order by key").unwrap();
    let rows: Vec<(String, Vec<u8>)> =
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows[0].0, "1");
    assert!(rows[1].0.starts_with("1 hmac="), "{}", rows[1].0);
    assert_ne!(rows[0].1, rows[1].1, "equal requests have different fingerprints in the store");
}

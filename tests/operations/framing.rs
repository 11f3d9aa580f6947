//! Message framing: an ambiguous message never reaches the service.

use std::path::Path;

use serde_json::Value;

use harness::wire::{bytes, text};
use harness::{Answer, Exchange, Store, World};

/// Checks that the request is refused and the connection closed before the service gets a byte.
async fn is_refused(world: &World, raw: &str, statuses: &[u16]) {
    let calls = world.upstream.calls();
    let mut exchange = world.proxy.client().raw(&bytes(raw)).await;
    let refusal = exchange.try_response().await.unwrap_or_else(|error| panic!("{raw:?}: {error}"));
    assert!(statuses.contains(&refusal.status), "{raw:?}: {refusal:?}");
    exchange.wait_until_closed().await;
    assert_eq!(world.upstream.calls(), calls, "{raw:?} has reached the service");
}

/// The request with a key, and without one.
fn guarded_and_not(fields: &str, body: &str) -> [String; 2] {
    ["Authorization: Bearer a\r\nIdempotency-Key: k-1\r\n", ""]
        .map(|key| format!("POST /pay HTTP/1.1\r\n{key}{fields}\r\n{body}"))
}

#[tokio::test]
async fn a_request_with_ambiguous_framing_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let chunked = "2\r\nhi\r\n0\r\n\r\n";
    for (fields, body, statuses) in [
        ("Host: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunked, &[400][..]),
        ("Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", chunked, &[400]),
        ("Host: h\r\nContent-Length: 2\r\nContent-Length: 3\r\n", "hi!", &[400]),
        ("Host: h\r\nContent-Length: 2, 3\r\n", "hi!", &[400]),
        ("Host: h\r\nTransfer-Encoding: gzip, chunked\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding: chunked, chunked\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding: xchunked\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding: \"chunked\"\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding:\r\n", chunked, &[400, 501]),
        ("Host: h\r\nTransfer-Encoding\r\n: chunked\r\n", chunked, &[400]),
        ("Host: h\r\nTransfer-Encoding : chunked\r\n", chunked, &[400]),
        ("Host: h\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n", chunked, &[400]),
        ("Host: h\r\nX-A: b\rTransfer-Encoding: chunked\r\n", chunked, &[400]),
        ("Host: h\r\nContent-Length: +2\r\n", "hi", &[400]),
        ("Host: h\r\nContent-Length: 0x2\r\n", "hi", &[400]),
        ("Host: h\r\nContent-Length: -2\r\n", "hi", &[400]),
        ("Host: h\r\nContent-Length: 2 2\r\n", "hi", &[400]),
        ("Host: h\r\nContent-Length: 18446744073709551618\r\n", "hi", &[400]),
    ] {
        for raw in guarded_and_not(fields, body) {
            is_refused(&world, &raw, statuses).await;
        }
    }
}

#[tokio::test]
async fn a_request_without_a_host_or_with_two_is_refused() {
    let world = World::start(Store::sqlite()).await;
    for fields in
        ["", "Host: h\r\nHost: g\r\n", "Host: h\r\nHost: h\r\n", "Host: h, g\r\n", "Host: a b\r\n", "Host: a/b\r\n"]
    {
        for raw in guarded_and_not(&format!("{fields}Content-Length: 2\r\n"), "hi") {
            is_refused(&world, &raw, &[400]).await;
        }
    }
}

#[tokio::test]
async fn a_chunk_with_an_invalid_size_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let chunks = [
        "xyz\r\nhi",
        "+2\r\nhi",
        "0x2\r\nhi",
        "-1\r\nhi",
        "\r\nhi",
        "fffffffffffffffff\r\nhi",
        "2\nhi",
        "2\rhi",
        "2\r\nhi!",
    ];
    for chunk in chunks {
        for raw in guarded_and_not("Host: h\r\nTransfer-Encoding: chunked\r\n", &format!("{chunk}\r\n0\r\n\r\n")) {
            let executed = world.upstream.executed().len();
            let mut exchange = world.proxy.client().raw(&bytes(&raw)).await;
            let refusal = exchange.try_response().await.unwrap_or_else(|error| panic!("{raw:?}: {error}"));
            assert_eq!(refusal.status, 400, "{raw:?}: {refusal:?}");
            exchange.wait_until_closed().await;
            assert_eq!(world.upstream.executed().len(), executed, "{raw:?} has been executed");
        }
    }
}

#[tokio::test]
async fn bytes_after_a_refused_request_are_never_served() {
    let world = World::start(Store::sqlite()).await;
    let smuggled = world.post("/smuggled").key("k-1").body("x").bytes();
    for fields in ["Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip, chunked\r\n"] {
        for raw in guarded_and_not(&format!("Host: h\r\n{fields}"), &format!("0\r\n\r\n{}", text(&smuggled))) {
            is_refused(&world, &raw, &[400, 501]).await;
        }
    }
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn bytes_after_an_oversized_body_are_never_served() {
    let world = World::guarding(Store::sqlite(), "max_request_body = \"1KiB\"").await;
    let smuggled = world.pay("smuggled").bytes();
    let large = world.pay("k-1").body([&*b"x".repeat(2_000), &*smuggled].concat());
    for request in [large.clone(), large.chunked()] {
        let mut exchange = request.open().await.unwrap();
        assert_eq!(exchange.response().await.outcome(), (413, "request-too-large".to_owned()));
        exchange.finish().await;
        exchange.wait_until_closed().await;
    }
    assert_eq!(world.upstream.calls(), 0);
}

#[tokio::test]
async fn a_head_of_too_many_fields_or_too_many_bytes_is_refused() {
    let world = World::start(Store::sqlite()).await;
    let many: String = (0..100).map(|number| format!("X-{number}: 1\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "x".repeat(64 * 1024));
    for fields in [many, long] {
        for raw in guarded_and_not(&format!("Host: h\r\n{fields}Content-Length: 0\r\n"), "") {
            is_refused(&world, &raw, &[431]).await;
        }
    }
}

#[tokio::test]
async fn chunked_http_1_0_is_refused() {
    let world = World::start(Store::sqlite()).await;
    for key in ["Authorization: Bearer a\r\nIdempotency-Key: k-1\r\n", ""] {
        let raw =
            format!("POST /pay HTTP/1.0\r\nHost: h\r\n{key}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
        is_refused(&world, &raw, &[400]).await;
    }
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused() {
    let world = World::start(Store::sqlite()).await;
    for raw in
        ["lol\r\n\r\n", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "\0\0\0\0\r\n\r\n"]
    {
        is_refused(&world, raw, &[400, 505]).await;
    }
}

/// The shared vectors; `None` if the project's checkout does not have them.
fn vectors() -> Option<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors/oncegate/framing.json");
    let Ok(text) = std::fs::read_to_string(&file) else {
        eprintln!("skipped: there are no vectors in {}", file.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn word<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().unwrap()
}

#[tokio::test]
async fn every_request_of_the_vectors_is_treated_as_the_standards_require() {
    let Some(vectors) = vectors() else { return };
    let mut wrong = Vec::new();
    for vector in vectors["requests"].as_array().unwrap() {
        let raw = word(vector, "raw");
        let (line, rest) = raw.split_at(raw.find('\n').unwrap() + 1);
        let end = if line.ends_with("\r\n") { "\r\n" } else { "\n" };
        let keyed = format!("{line}Idempotency-Key: k-1{end}{rest}");
        let keys = rest.matches("Idempotency-Key").count();
        for raw in if keys == 0 { vec![raw, &keyed] } else { vec![raw] } {
            // The vectors name no callers.
            let world = World::with(Store::sqlite(), |setup| setup.defaults("scope = [\"none\"]")).await;
            let mut exchange = world.proxy.client().raw(&bytes(raw)).await;
            let what = word(vector, "required");
            if let Err(why) = check_request(&world, what, raw, &mut exchange).await {
                wrong.push(format!("{} ({what}): {why}: {raw:?}", word(vector, "name")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn check_request(world: &World, required: &str, raw: &str, exchange: &mut Exchange) -> Result<(), String> {
    let breaks_off = required == "400_or_drop_never_forward";
    if breaks_off {
        exchange.finish().await;
    }
    if required == "final_status_or_100" {
        let head = exchange.any_head().await.map_err(|error| error.to_string())?;
        if !head.start.contains(" 100 ") {
            return Ok(());
        }
        exchange.write(b"hi").await;
    }
    let response = exchange.try_response().await;
    if breaks_off && response.is_err() {
        let executed = world.upstream.executed().len();
        return if executed == 0 { Ok(()) } else { Err("a part was passed for the whole".to_owned()) };
    }
    let response = response.map_err(|error| format!("no answer: {error}"))?;
    let calls = world.upstream.executed();
    let (status, last) = (response.status, calls.last());
    let is_body = |body: &[u8]| last.is_some_and(|call| call.body == body && call.all("content-length").len() <= 1);
    let accepted = status == 201 && calls.len() == 1;
    let refused = status == 400 && calls.is_empty() && world.upstream.calls() == 0;
    let held = match required {
        "accept_and_close_or_400" => refused || (accepted && is_body(b"hi")),
        "accept_or_400" => refused || accepted,
        "400" | "400_close" => refused,
        "400_or_unfold" => refused || (accepted && last.unwrap().field("x-a") == Some("one two")),
        "400_or_501" => refused || (status == 501 && calls.is_empty()),
        "501" => status == 501 && world.upstream.calls() == 0,
        "200_no_100" => accepted && response.interim.is_empty(),
        "forward_opaque" => accepted && last.unwrap().field("x-a") == Some("a\u{ff}b"),
        "accept_drop_trailers" => {
            let call = last.ok_or("it was not forwarded")?;
            // The vectors drop all trailers. The service of an unguarded request gets those that frame nothing, as
            // trailers alone.
            let names: Vec<_> = call.trailers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
            accepted && is_body(b"hi") && names.iter().all(|name| name == "x-t") && call.field("x-t").is_none()
        }
        "use_target_authority" => accepted && last.unwrap().field("host") == Some("other"),
        "final_status_or_100" => accepted && is_body(b"hi"),
        "417_allowed" => accepted || status == 417,
        "400_or_drop_never_forward" => status >= 400 && calls.is_empty(),
        "forward_reframed" => accepted && is_body(b"hi"),
        "431" => status == 431 && world.upstream.calls() == 0,
        other => panic!("the vectors require {other:?}"),
    };
    if !held {
        return Err(format!("{status}, {} of {} calls executed", calls.len(), world.upstream.calls()));
    }
    if status == 400 && !raw.contains("Idempotency-Key: \"a\r\n") || required == "accept_and_close_or_400" {
        exchange.wait_until_closed().await;
    }
    Ok(())
}

#[tokio::test]
async fn every_upstream_response_of_the_vectors_is_treated_as_the_standards_require() {
    let Some(vectors) = vectors() else { return };
    let world = World::start(Store::sqlite()).await;
    let mut wrong = Vec::new();
    for (number, vector) in vectors["upstream_responses"].as_array().unwrap().iter().enumerate() {
        let key = format!("k-{number}");
        let calls = world.upstream.calls();
        world.upstream.then(Answer::raw(bytes(word(vector, "raw"))));
        let first = world.pay(&key).send().await;
        let again = world.pay(&key).send().await;
        let required = word(vector, "required");
        let is_502 = first.outcome() == (502, "upstream-broken".to_owned())
            && again.outcome() == (409, "outcome-unknown".to_owned());
        let is_whole = |status: u16, body: &str| {
            let replayed = again.comparable() == first.replayed();
            (first.status, &*first.text(), first.oncegate_status()) == (status, body, Some("executed"))
                && first.all("content-length").len() + first.all("transfer-encoding").len() <= 1
                && replayed
        };
        let held = match required {
            "strip both, reframe, (or 502)" => is_502 || is_whole(200, "hi"),
            "strip, reframe" => is_whole(200, "hi"),
            "502 or strip the space; outcome unknown if 502" => {
                is_502 || (is_whole(200, "hi") && first.field("x-a") == Some("one"))
            }
            "forward; storing is a policy choice (completeness cannot be verified)" => is_whole(200, "hi there"),
            "store only the 201" => is_whole(201, "hi") && first.interim.is_empty(),
            "strip Content-Length" => is_whole(204, "") && first.field("content-length").is_none(),
            "forward as HTTP/1.1" => is_whole(200, "hi"),
            "strip X-Foo before forwarding and before storing" => is_whole(200, "") && first.field("x-foo").is_none(),
            required if required.starts_with("502") || required == "treat as 5xx: 502" => is_502,
            other => panic!("the vectors require {other:?}"),
        };
        if !held {
            wrong.push(format!("{} ({required}): {first:?} and then {again:?}", word(vector, "name")));
        }
        if world.upstream.calls() != calls + 1 {
            wrong.push(format!("{}: it was sent {} times", word(vector, "name"), world.upstream.calls() - calls));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

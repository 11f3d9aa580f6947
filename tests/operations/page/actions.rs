//! Decisions on the page.

use super::{Html, Visitor};
use harness::operator::{Operator, completed};
use harness::operator::{dead, unknown};
use harness::{Answer, Hold, Store, World, on_both_stores};

const RESPONSE: [(&str, &str); 5] = [
    ("name", "alice"),
    ("note", "ledger line 7"),
    ("status", "201"),
    ("headers", "Content-Type: text/plain\r\nX-Receipt: r-7\r\n"),
    ("body", "charge 7\r\nof two lines"),
];

on_both_stores!(retries_get_the_response_entered_on_the_page);
async fn retries_get_the_response_entered_on_the_page(store: Store) {
    let world = World::start(store).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let path = format!("/keys/{id}/completed");
    let asked = visitor.page(&path).await;
    for words in ["What it means", "What follows", "Every retry gets the response", "after 1 attempt."] {
        assert!(asked.contains(words), "{words}: {asked}");
    }
    for (field, wrong, why) in [
        ("status", "", "is not a status"),
        ("status", "99", "is not a status"),
        ("headers", "no colon", "without a colon"),
        ("headers", "Content-Length: 7", "content-length"),
        ("name", " ", "who you are"),
        ("note", &*"x".repeat(501), "is longer than"),
    ] {
        let typed: Vec<_> = RESPONSE.iter().map(|pair| if pair.0 == field { (field, wrong) } else { *pair }).collect();
        let refused = visitor.submit(&path, &typed).await;
        assert!(refused.status == 400 && refused.html().contains(why), "{field} {wrong:?}: {}", refused.html());
        assert!(refused.html().contains("charge 7\nof two lines"), "what was typed is not lost: {}", refused.html());
    }
    let done = visitor.submit(&path, &RESPONSE).await;
    assert_eq!(done.status, 303, "{}", done.html());
    let next = visitor.page(done.field("location").unwrap()).await;
    assert!(next.contains("Done. The key is completed by hand"), "{next}");
    let replay = world.pay("k-1").send().await;
    assert_eq!((replay.status, replay.text()), (201, "charge 7\nof two lines".to_owned()));
    assert!(replay.is_replay() && replay.field("x-receipt") == Some("r-7"));
    let line = ["alice (claimed) at 127.0.0.1", "resolve", "unknown", "completed"].map(str::to_owned);
    assert_eq!(Operator::of(&world.proxy).audit().await, [line]);
    assert_eq!(world.upstream.calls(), 1);
}

/// Responses that nobody may mean: the status, the fields, the body, and the reason.
const DOUBTFUL: [(&str, &str, &str, &str); 4] = [
    ("200", "Content-Type: application/json", "", "has a JSON type and an empty body"),
    ("201", "Content-Type: application/problem+json", "{", "has a JSON type and a body that is no JSON"),
    ("503", "Content-Type: text/plain", "away", "has the status 503"),
    ("500", "", "", "has the status 500"),
];

#[tokio::test]
async fn the_form_for_a_response_is_empty_and_a_doubtful_one_needs_the_checkbox() {
    let world = World::start(Store::sqlite()).await;
    let (visitor, operator) = (Visitor::of(&world), Operator::of(&world.proxy));
    for (number, (status, headers, body, why)) in DOUBTFUL.into_iter().enumerate() {
        let id = unknown(&world, &format!("k-{number}")).await;
        let path = format!("/keys/{id}/completed");
        let page = visitor.page(&path).await;
        assert!(page.contains("name=\"status\" inputmode=\"numeric\" size=\"4\" value=\"\" required"), "{page}");
        assert!(!page.contains("name=\"accept_risk\"") && !page.contains(">Content-Type"), "{page}");
        let untouched =
            visitor.submit(&path, &[("name", "alice"), ("status", ""), ("headers", ""), ("body", "")]).await;
        assert_eq!(untouched.status, 400, "{}", untouched.html());
        let typed = [("name", "alice"), ("status", status), ("headers", headers), ("body", body)];
        let refused = visitor.submit(&path, &typed).await;
        assert_eq!(refused.status, 409, "{}", refused.html());
        for words in
            [why, "tick the box below", "name=\"accept_risk\"", "required> <label for=\"risk\">I have looked again"]
        {
            assert!(refused.html().contains(words), "{words}: {}", refused.html());
        }
        assert_eq!(operator.keys("state=unknown").await.len(), 1, "nothing was stored");
        let meant = visitor.submit(&path, &[&typed[..], &[("accept_risk", "true")]].concat()).await;
        assert_eq!(meant.status, 303, "{}", meant.html());
        let replay = world.pay(&format!("k-{number}")).send().await;
        assert!(replay.is_replay() && replay.status.to_string() == status && replay.text() == body, "{replay:?}");
    }
    // The form for the keys of a filter has the same rule.
    unknown(&world, "k-9").await;
    let path = "/keys/several?step=completed&state=unknown";
    assert!(!visitor.page(path).await.contains("name=\"accept_risk\""), "one key, and nothing typed yet");
    let typed = [("name", "alice"), ("status", "500"), ("headers", ""), ("body", "")];
    let refused = visitor.submit(path, &typed).await;
    assert!(refused.status == 409 && refused.html().contains("I have looked again"), "{}", refused.html());
    let meant = visitor.submit(path, &[&typed[..], &[("accept_risk", "true")]].concat()).await;
    assert_eq!(meant.status, 303, "{}", meant.html());
}

on_both_stores!(a_response_that_an_operator_has_written_is_corrected_on_the_page);
async fn a_response_that_an_operator_has_written_is_corrected_on_the_page(store: Store) {
    let world = World::start(store).await;
    let (visitor, operator) = (Visitor::of(&world), Operator::of(&world.proxy));
    let paid = Answer::status(202).field("Content-Type", "text/plain").field("X-Secret", "of another caller");
    world.upstream.then(paid.body("paid by jane"));
    assert_eq!(world.pay("other").send().await.status, 202);
    let id = unknown(&world, "k-1").await;
    // The form of the route's own response, without what belongs to its caller.
    let path = format!("/keys/{id}/completed");
    let page = visitor.page(&path).await;
    for words in [
        "value=\"202\" required",
        ">Content-Type: text/plain<",
        "has status 202 and 12 bytes of text/plain",
        "x-secret",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("jane") && !page.contains("of another caller"), "{page}");
    assert!(!page.contains("name=\"accept_risk\""), "nothing was sent yet: {page}");
    let typed = [("name", "alice"), ("status", "201"), ("headers", "Content-Type: text/plain"), ("body", "")];
    let refused = visitor.submit(&path, &typed).await;
    assert_eq!(refused.status, 409, "{}", refused.html());
    for words in
        ["the response has no body", "or tick the box below if", "required> <label for=\"risk\">I have looked again"]
    {
        assert!(refused.html().contains(words), "{words}: {}", refused.html());
    }
    let meant = visitor.submit(&path, &[&typed[..], &[("accept_risk", "true")]].concat()).await;
    assert_eq!(meant.status, 303, "{}", meant.html());
    let key = visitor.page(&format!("/keys/{id}")).await;
    assert!(key.contains("Correct its response") && key.contains("written by an operator"), "{key}");
    let done = visitor.submit(&format!("/keys/{id}/replace"), &RESPONSE).await;
    assert_eq!(done.status, 303, "{}", done.html());
    let next = visitor.page(done.field("location").unwrap()).await;
    assert!(next.contains("Done. The key is completed by hand: retries get the new response"), "{next}");
    assert!(next.contains("<strong>replace</strong> completed → completed"), "{next}");
    assert_eq!(world.pay("k-1").send().await.text(), "charge 7\nof two lines");
    // Not for a response of the service.
    let of_service = operator.id("other").await;
    assert!(!visitor.page(&format!("/keys/{of_service}")).await.contains("Correct its response"));
    let page = visitor.page(&format!("/keys/{of_service}/replace")).await;
    assert!(page.contains("This decision is not for a key that is completed"), "{page}");
    assert!(!visitor.page("/keys?state=completed").await.contains("value=\"replace\""), "each key has its own");
}

on_both_stores!(a_decision_that_may_execute_twice_needs_the_checkbox);
async fn a_decision_that_may_execute_twice_needs_the_checkbox(store: Store) {
    let world = World::start(store).await;
    let (retried, forgotten) = (unknown(&world, "k-1").await, unknown(&world, "k-2").await);
    let visitor = Visitor::of(&world);
    let operator = Operator::of(&world.proxy);
    for key in ["k-3", "k-4"] {
        assert_eq!(world.pay(key).send().await.status, 201);
    }
    let (released, purged) = (operator.id("k-3").await, operator.id("k-4").await);
    for (done, (id, action, reason)) in [
        (&retried, "not-executed", "may still be running"),
        (&forgotten, "purge", "executed twice"),
        (&released, "release", "its next retry is executed"),
        (&purged, "purge", "its next retry is executed"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/keys/{id}/{action}");
        let page = visitor.page(&path).await;
        assert!(page.contains("name=\"accept_risk\""), "{page}");
        assert_eq!(page.contains("Oncegate accepts this"), action == "not-executed", "{page}");
        let refused = visitor.submit(&path, &[("name", "alice")]).await;
        assert!(refused.status == 409 && refused.html().contains(reason), "{}", refused.html());
        assert!(refused.html().contains("tick the box below"), "{}", refused.html());
        assert_eq!(operator.audit().await.len(), done);
        let done = visitor.submit(&path, &[("name", "alice"), ("accept_risk", "true")]).await;
        assert_eq!(done.status, 303, "{}", done.html());
    }
    for key in ["k-1", "k-2", "k-3", "k-4"] {
        assert_eq!(world.pay(key).send().await.oncegate_status(), Some("executed"));
    }
    // A bulk change asks in the same way: without the box, live keys are left.
    let path = "/keys/several?step=purge&route=default";
    assert!(visitor.page(path).await.contains("would get its response"));
    let none = visitor.submit(path, &[("name", "alice")]).await;
    let notice = visitor.page(none.field("location").unwrap()).await;
    assert!(notice.contains("4 keys were not changed") && notice.contains("without accepting the risk"), "{notice}");
    let all = visitor.submit(path, &[("name", "alice"), ("accept_risk", "true")]).await;
    assert!(visitor.page(all.field("location").unwrap()).await.contains("Done. 4 keys are forgotten"));
}

on_both_stores!(a_forgotten_key_leaves_its_audit_behind);
async fn a_forgotten_key_leaves_its_audit_behind(store: Store) {
    let mut world = World::start(store).await;
    let given_up = dead(&mut world, "k-1").await;
    assert_eq!(world.pay("k-2").send().await.status, 201);
    let operator = Operator::of(&world.proxy);
    let completed = operator.id("k-2").await;
    let visitor = Visitor::of(&world);
    let name = [("name", "alice")];
    assert_eq!(visitor.submit(&format!("/keys/{given_up}/requeue"), &name).await.status, 303);
    assert_eq!(operator.id_when("k-1", "unknown").await, given_up);
    let at_risk = [("name", "alice"), ("accept_risk", "true")];
    assert_eq!(visitor.submit(&format!("/keys/{completed}/release"), &at_risk).await.status, 303);
    let done = visitor.submit(&format!("/keys/{completed}/purge"), &name).await;
    let next = visitor.get(done.field("location").unwrap()).await;
    assert_eq!(next.status, 404);
    for words in ["Done. The key is forgotten.", "There is no such key", "completed → retryable", "retryable → none"]
    {
        assert!(next.html().contains(words), "{words}: {}", next.html());
    }
    assert_eq!(world.pay("k-2").send().await.text(), "effect 3");
}

on_both_stores!(a_key_that_has_changed_since_its_page_was_shown_is_left_alone);
async fn a_key_that_has_changed_since_its_page_was_shown_is_left_alone(store: Store) {
    let world = World::with(store, |setup| setup.defaults("on_unknown = \"retry\"")).await;
    let id = unknown(&world, "k-1").await;
    let visitor = Visitor::of(&world);
    let path = format!("/keys/{id}/purge");
    let hidden = super::hidden(&visitor.page(&path).await);
    world.upstream.then(Answer::close());
    assert_eq!(world.pay("k-1").send().await.status, 502);
    assert_eq!(unknown_again(&world, &id).await, 2);
    let fields: Vec<_> = hidden.iter().map(|(name, value)| (&**name, &**value)).collect();
    let typed = [&fields[..], &[("name", "alice"), ("accept_risk", "true")]].concat();
    let refused = visitor.form(&path, &typed).send().await;
    assert_eq!(refused.status, 409);
    assert!(refused.html().contains("has changed since you looked: it is unknown now, after attempt 2"));
    assert!(Operator::of(&world.proxy).audit().await.is_empty());
    // A running attempt cannot be decided about.
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("k-2").spawn();
    world.upstream.wait_for_executed(3).await;
    let id = Operator::of(&world.proxy).id("k-2").await;
    assert!(!visitor.page(&format!("/keys/{id}")).await.contains("id=\"decide\""));
    for action in ["completed", "not-executed", "release", "requeue", "purge"] {
        let page = visitor.page(&format!("/keys/{id}/{action}")).await;
        assert!(
            page.contains("This decision is not for a key that is in_flight") && !page.contains("name=\"seen\""),
            "{page}"
        );
    }
    hold.release();
    assert_eq!(running.await.unwrap().unwrap().status, 201);
}

async fn unknown_again(world: &World, id: &str) -> u64 {
    harness::eventually(harness::TEST_TIMEOUT, async || {
        let key = Operator::of(&world.proxy).get(&format!("/api/v1/keys/{id}")).await.1;
        (key["state"] == "unknown" && key["attempts"] != 1).then(|| key["attempts"].as_u64().unwrap())
    })
    .await
}

/// Checks the boxes of these keys in the list, follows a button, and returns the address of the page behind it.
async fn choose(visitor: &Visitor, list: &str, step: &str, ids: &[&String]) -> String {
    let page = visitor.page(list).await;
    let boxes: Vec<_> =
        page.split("name=\"chosen\" value=\"").skip(1).map(|rest| &rest[..rest.find('"').unwrap()]).collect();
    let chosen = ids.iter().map(|id| boxes.iter().find(|text| text.starts_with(id.as_str())).expect("it has a box"));
    assert!(page.contains(&format!("name=\"step\" value=\"{step}\"")), "{page}");
    chosen.fold(format!("/keys/several?step={step}"), |path, text| format!("{path}&chosen={text}"))
}

on_both_stores!(chosen_keys_are_changed_only_as_the_operator_saw_them);
async fn chosen_keys_are_changed_only_as_the_operator_saw_them(store: Store) {
    let world = World::start(store).await;
    let mut ids = Vec::new();
    for key in ["same-1", "left-1", "late-1", "gone-1", "again-1"] {
        ids.push(unknown(&world, key).await);
    }
    let [same, left, late, gone, again] = &ids[..] else { unreachable!() };
    let (visitor, operator) = (Visitor::of(&world), Operator::of(&world.proxy));
    let path = choose(&visitor, "/keys?state=unknown", "not-executed", &[same, late, gone, again]).await;
    // One changes before the page with the form, the others between the form and the decision.
    assert_eq!(operator.resolve(late, completed(201, "x")).await.0, 200);
    let page = visitor.page(&path).await;
    for words in [
        "It was not executed: 3 keys",
        "Not changed: 1: it has changed since it was looked at",
        "same-1",
        "left as it is",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("left-1") && !page.contains("late-1"), "{page}");
    let purge = async |id: &str| operator.delete(&format!("/api/v1/keys/{id}?accept_risk=true")).await.0;
    assert_eq!(purge(gone).await, 200);
    // Forgotten, used anew, and again unknown after one attempt: the same state and number, of another request.
    assert_eq!(purge(again).await, 200);
    assert_eq!(unknown(&world, "again-1").await, *again);
    let hidden = super::hidden(&page);
    let fields: Vec<_> = hidden.iter().map(|(name, value)| (&**name, &**value)).collect();
    let done = visitor.form("/keys/several", &[&fields[..], &[("name", "alice"), ("accept_risk", "true")]].concat());
    let done = done.send().await;
    assert_eq!(done.status, 303, "{}", done.html());
    let address = done.field("location").unwrap().to_owned();
    let result = visitor.page(&address).await;
    assert!(result.contains("Done. 1 key is retryable") && result.contains("3 keys were not changed"), "{result}");
    let rows: Vec<_> = result.split("<div role=\"row\">").skip(1).collect();
    for (id, what, state) in [
        (same, "Changed", "retryable"),
        (late, "it has changed since it was looked at", "completed"),
        (gone, "it is gone", "forgotten"),
        (again, "it has changed since it was looked at", "unknown"),
    ] {
        let row = rows.iter().find(|row| row.contains(&id[..16])).unwrap_or_else(|| panic!("{id}: {result}"));
        assert!(row.contains(what) && row.contains(state), "{what} {state}: {row}");
    }
    assert_eq!(visitor.page(&address).await.matches("Changed<").count(), 1, "looking again changes nothing");
    // The same form once more: what it was about has changed.
    let once_more =
        visitor.form("/keys/several", &[&fields[..], &[("name", "alice"), ("accept_risk", "true")]].concat());
    let result = visitor.page(once_more.send().await.field("location").unwrap()).await;
    assert!(result.contains("Done. 0 keys are"), "{result}");
    assert_eq!(operator.get(&format!("/api/v1/keys/{left}")).await.1["state"], "unknown");
    // A decision that is not for a chosen key leaves that one out.
    let path = choose(&visitor, "/keys", "release", &[late, left]).await;
    let page = visitor.page(&path).await;
    assert!(page.contains("Drop its response: 1 key") && page.contains("its state does not allow it"), "{page}");
    for wrong in ["chosen=x", "chosen=xyz.unknown-1", "chosen="] {
        assert_eq!(visitor.get(&format!("/keys/several?step=purge&{wrong}")).await.status, 400, "{wrong}");
    }
    let many = vec![format!("chosen={same}.x"); 501].join("&");
    assert_eq!(visitor.get(&format!("/keys/several?step=purge&{many}")).await.status, 400);
}

on_both_stores!(a_bulk_change_affects_only_the_counted_keys);
async fn a_bulk_change_affects_only_the_counted_keys(store: Store) {
    let world = World::start(store).await;
    for number in 0..3 {
        unknown(&world, &format!("k-{number}")).await;
    }
    let visitor = Visitor::of(&world);
    let operator = Operator::of(&world.proxy);
    let list = visitor.page("/keys?state=unknown").await;
    assert!(list.contains("/keys/several?step=not-executed&amp;state=unknown"), "{list}");
    let path = "/keys/several?step=not-executed&state=unknown";
    let page = visitor.page(path).await;
    assert!(page.contains("It was not executed: 3 keys") && page.contains("3 <b class=\"unknown\">"), "{page}");
    let hidden = super::hidden(&page);
    // A third key has become unknown since.
    unknown(&world, "k-3").await;
    let fields: Vec<_> = hidden.iter().map(|(name, value)| (&**name, &**value)).collect();
    let typed = [&fields[..], &[("name", "alice"), ("accept_risk", "true")]].concat();
    let refused = visitor.form("/keys/several", &typed).send().await;
    assert_eq!(refused.status, 409);
    for words in ["4 keys match, more than the 3 that were expected", "name=\"expect\" value=\"4\""] {
        assert!(refused.html().contains(words), "{words}: {}", refused.html());
    }
    assert!(operator.audit().await.is_empty());
    // Without the accepted risk, all are refused, as none is quiet; the page says why.
    let none = visitor.submit(path, &[("name", "alice")]).await;
    let notice = visitor.page(none.field("location").unwrap()).await;
    for words in
        ["0 keys are retryable", "4 keys were not changed: its last attempt may still be running at the service."]
    {
        assert!(notice.contains(words), "{words}: {notice}");
    }
    let done = visitor.submit(path, &[("name", "alice"), ("accept_risk", "true"), ("note", "outage 12")]).await;
    assert_eq!(done.status, 303, "{}", done.html());
    let notice = visitor.page(done.field("location").unwrap()).await;
    assert!(notice.contains("Done. 4 keys are retryable") && notice.matches("Changed<").count() == 4, "{notice}");
    assert!(visitor.page("/audit").await.contains("accept_risk; outage 12"));
    assert_eq!(operator.audit().await.len(), 4);
    assert_eq!(world.pay("k-3").send().await.oncegate_status(), Some("executed"));
    let empty = visitor.page(path).await;
    assert!(empty.contains("There is nothing to decide.") && !empty.contains("name=\"expect\""), "{empty}");
    for wrong in ["/keys/several?step=purge", "/keys/several", "/keys/several?step=purge&state=lost"] {
        assert_eq!(visitor.get(wrong).await.status, 400, "{wrong}");
    }
    let purged = visitor.submit("/keys/several?step=purge&state=retryable", &[("name", "alice")]).await;
    assert!(visitor.page(purged.field("location").unwrap()).await.contains("Done. 3 keys are forgotten."));
}

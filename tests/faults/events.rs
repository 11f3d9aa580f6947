//! The events of a run: the last one of each key tells its state, and those of a key come in their order.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::Store;

/// An event about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    pub record: String,
    pub sequence: i64,
    /// The state of the key then; empty where its record was deleted.
    pub state: String,
}

impl KeyEvent {
    /// Reads the body of a POST.
    pub fn parse(body: &[u8]) -> Self {
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let (record, state) = (text(&event["subject"]), text(&event["data"]["state"]));
        Self { record, sequence: text(&event["sequence"]).parse().unwrap(), state }
    }
}

/// Returns what is wrong with the events that were received, in the order in which they came. No proxy runs any more.
pub async fn find_breaches(received: &[KeyEvent], store: &Store) -> Vec<String> {
    let mut breaches = Vec::new();
    let (mut last, mut seen) = (BTreeMap::<&str, &KeyEvent>::new(), BTreeSet::new());
    for event in received {
        if seen.insert((&event.record, event.sequence))
            && let Some(before) = last.insert(&event.record, event).filter(|before| before.sequence > event.sequence)
        {
            breaches.push(format!("event {} of {} came after {}", event.sequence, event.record, before.sequence));
        }
    }
    let waiting = store.hex_rows("id, seq, coalesce(state, '')", "events order by seq").await;
    let waiting: Vec<KeyEvent> =
        waiting.into_iter().map(|(record, sequence, state)| KeyEvent { record, sequence, state }).collect();
    last.extend(waiting.iter().map(|event| (&*event.record, event)));
    let keys = store.hex_rows("id, created_at, state", "keys where state in ('completed', 'dead', 'unknown')").await;
    for (record, _, state) in &keys {
        let told = last.get(&**record).map(|event| &*event.state);
        if told != Some(state) {
            breaches.push(format!("the last event of {record}, which is {state}, tells {told:?}"));
        }
    }
    breaches
}

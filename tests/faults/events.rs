//! The events of a run: the last one of each key tells its state, and those of a key come in their order.

use std::collections::{BTreeMap, BTreeSet};

use crate::service::KeyEvent;
use harness::Store;

/// Returns what is wrong with the events that were received, in the order in which they came. No proxy runs any more.
/// There are none about orders.
pub async fn find_breaches(received: &[KeyEvent], store: &Store) -> Vec<String> {
    let mut breaches: Vec<_> = received.is_empty().then(|| "no event was received".to_owned()).into_iter().collect();
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
    let keys = store
        .hex_rows("id, created_at, state", "keys where state in ('completed', 'dead', 'unknown') and route <> 'orders'")
        .await;
    for (record, _, state) in &keys {
        let told = last.get(&**record).map(|event| &*event.state);
        if told != Some(state) {
            breaches.push(format!("the last event of {record}, which is {state}, tells {told:?}"));
        }
    }
    breaches
}

//! A route's `delivery` and `retry`.

use super::reader::Section;
use super::routes::Context;
use crate::domain::job::Retry;

/// Whether a request is answered at once or delivered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Later, all of them.
    Async,
    /// Later, where the client says that it prefers that (`Prefer: respond-async`, RFC 7240 section 4.1).
    Prefer,
    /// At once.
    Sync,
}

/// With the longest pause some weeks of them.
const ATTEMPTS_MAX: usize = 10_000;

pub(super) fn read(section: &Section<'_>, context: &Context) -> Option<(Delivery, Retry)> {
    let delivery = section.choice("delivery", |word| match word {
        "async" => Some(Delivery::Async),
        "prefer" => Some(Delivery::Prefer),
        "sync" => Some(Delivery::Sync),
        _ => None,
    });
    let table = section.table("retry");
    let max_attempts = table.integer("max_attempts", 1..=ATTEMPTS_MAX, "it counts attempts");
    let base = table.duration_above_zero("base");
    let cap = table.duration_above_zero("cap");
    let give_up_after = table.duration_above_zero("give_up_after");
    let (delivery, base, cap) = (delivery?, base?, cap?);
    if base.value > cap.value {
        let message = "`base` must not be over `cap`: the first pause would be longer than the longest";
        table.reader().problem((&base.place).max(&cap.place), message);
        return None;
    }
    if delivery.value != Delivery::Sync && context.secrets.as_ref()?.current().is_none() {
        let message = "needs a `secret` at the top of the file: what is queued is stored encrypted, and never without";
        section.reader().problem(&delivery.place, message);
        return None;
    }
    let max_attempts = u32::try_from(max_attempts?.value).expect("its bound is far below");
    let give_up_after = give_up_after?.value;
    Some((delivery.value, Retry { max_attempts, base: base.value, cap: cap.value, give_up_after }))
}

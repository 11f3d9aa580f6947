//! Reads and checks a route's `delivery` and `retry`.

use super::reader::Section;
use super::route_context::RouteContext;
use crate::domain::retry::RetryPolicy;

/// When a request is sent to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Later, for all requests.
    Async,
    /// Later, where the client says that it prefers that (`Prefer: respond-async`, RFC 7240 section 4.1).
    Prefer,
    /// At once.
    Sync,
}

/// With the default `cap` of 10 minutes, this is about ten weeks.
const ATTEMPTS_MAX: usize = 10_000;

pub(super) fn read(section: &Section<'_>, context: &RouteContext) -> Option<(DeliveryMode, RetryPolicy)> {
    let delivery = section.choice("delivery", |word| match word {
        "async" => Some(DeliveryMode::Async),
        "prefer" => Some(DeliveryMode::Prefer),
        "sync" => Some(DeliveryMode::Sync),
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
        table.reader().problem((&base.position).max(&cap.position), message);
        return None;
    }
    if delivery.value != DeliveryMode::Sync && context.secrets.as_ref()?.current().is_none() {
        let message = "needs a `secret` at the top of the file: what is queued is stored encrypted, and never without";
        section.reader().problem(&delivery.position, message);
        return None;
    }
    let max_attempts = u32::try_from(max_attempts?.value).expect("its bound is far below");
    let give_up_after = give_up_after?.value;
    Some((delivery.value, RetryPolicy { max_attempts, base: base.value, cap: cap.value, give_up_after }))
}

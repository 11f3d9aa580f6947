//! Arm: accept the request, and deliver it later. Who is told 202 has it durable in the store, key and request together.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};
use tokio::time::Instant;

use super::admit::Guarded;
use super::decide::{Decision, decide};
use super::meters::Found;
use super::prefer;
use super::refuse::{Refusal, RetryAfter};
use super::replay;
use super::status::Told;
use super::{Gate, Stamp, TAKE_OVERS_MAX, letter, operations, refusal_of};
use crate::body::Body;
use crate::config::Delivery;
use crate::domain::job::{Enqueued, Order};
use crate::domain::operation::OperationId;
use crate::domain::sealed::Sealed;

impl Guarded {
    /// Whether its answer is to come later.
    pub(super) fn is_for_later(&self) -> bool {
        match self.route().delivery {
            Delivery::Async => true,
            Delivery::Prefer => prefer::respond_async(&self.head.headers),
            Delivery::Sync => false,
        }
    }

    /// The request as it is kept until then.
    fn order(&self) -> Order {
        let secret = self.secrets.current().expect("the configuration has made sure that there is one");
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).expect("the operating system has random numbers");
        let letter = letter::write(&self.head, &self.body, &self.origin);
        Order { ask: self.ask.clone(), sealed: Sealed::seal(secret, &self.ask.id, salt, &letter) }
    }
}

impl Gate {
    /// Accepts what has no record yet, or one that the next request may take. No lease is needed: nothing is begun.
    pub(super) async fn enqueue(&self, guarded: &Guarded, stamp: &Stamp) -> Result<Response<Body>, Refusal> {
        let (order, rules) = (guarded.order(), guarded.rules());
        let cached = self.shared.cache.begin();
        let mut from = None;
        for _ in 0..=TAKE_OVERS_MAX {
            let record = match self.shared.store.enqueue(order.clone(), from).await.map_err(refusal_of)? {
                Enqueued::Accepted => {
                    let found = if from.is_none() { Found::Created } else { Found::FailedRetry };
                    self.shared.watch.found(&guarded.guard.meters, &guarded.ask.scope, found);
                    // Whoever delivers here need not find it by looking.
                    self.shared.due.notify_one();
                    return self.accepted(guarded, RetryAfter::new(rules.usual), stamp).await;
                }
                Enqueued::Taken(record) => record,
            };
            self.shared.cache.put(&record, cached);
            let same = guarded.is_what(&record);
            match decide(record, same, &rules) {
                Decision::TakeOver(seen) => from = Some(seen),
                decision => return self.tell(guarded, decision, stamp).await,
            }
        }
        // Others keep taking it over before us: one of them is running.
        Err(Refusal::InFlight(RetryAfter::new(rules.usual)))
    }

    /// It has been accepted: 202, and where to ask after it. Who prefers to wait a while may get the answer itself.
    pub(super) async fn accepted(
        &self,
        guarded: &Guarded,
        wait: RetryAfter,
        stamp: &Stamp,
    ) -> Result<Response<Body>, Refusal> {
        let (id, route) = (guarded.ask.id, guarded.route());
        let patience = prefer::wait(&guarded.head.headers).unwrap_or(Duration::ZERO).min(route.wait_timeout);
        let settled = tokio::select! {
            settled = self.shared.waiters.wait(&self.shared, id, Instant::now() + patience) => settled,
            () = self.shared.draining.cancelled() => None,
        };
        let decision = settled.map(|record| {
            let same = guarded.is_what(&record);
            decide(record, same, &guarded.rules())
        });
        match decision {
            Some(Decision::Replay(completed)) => Ok(replay::replay(completed, stamp)),
            Some(Decision::Refuse(refusal)) => Err(refusal),
            Some(Decision::Accepted(wait)) => Ok(self.promise(guarded, wait, stamp)),
            Some(Decision::Join(_) | Decision::TakeOver(_)) | None => Ok(self.promise(guarded, wait, stamp)),
        }
    }

    fn promise(&self, guarded: &Guarded, wait: RetryAfter, stamp: &Stamp) -> Response<Body> {
        let operation = OperationId::of(guarded.ask.id, &guarded.ask.scope, &self.shared.salt);
        let document = serde_json::json!({ "id": operation.to_string() });
        let mut response = Response::new(Body::whole(document.to_string()));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        let location = HeaderValue::from_str(&format!("{}{operation}", operations::HOME)).expect("it is plain ASCII");
        headers.insert(LOCATION, location);
        headers.insert(prefer::APPLIED, HeaderValue::from_static(prefer::RESPOND_ASYNC));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        stamp.put(headers, Told::Queued);
        response
    }
}

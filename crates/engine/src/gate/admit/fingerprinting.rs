//! Computes the fingerprints of requests: that of a large body on another thread, so that no other request
//! of the worker waits for it.

use std::panic;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::request;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::incoming::named_host;
use oncegate_domain::fingerprint::{Fingerprint, FingerprintInput, Recipe, Secrets};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::part_bits::{PartBits, PartKey};
use oncegate_settings::Route;

/// The size from which a body is large, by what it may have decoded. At the 300 MB/s that BENCHMARKS.md aims at, 64 KiB
/// of JSON take 0.22 ms.
// See docs/decisions/0026-keep-loads-apart.md.
pub(super) const LARGE_BODY: usize = 64 * 1024;

/// The size from which a document of GraphQL or XML is large: each takes up to 0.1 µs for a byte, ten times as long as
/// JSON for a fingerprint.
pub(super) const LARGE_DOCUMENT: usize = 8 * 1024;

/// Computes fingerprints for one worker.
#[derive(Clone, Debug)]
pub struct Fingerprinting {
    /// One large body at a time: more threads would take the processors from the workers.
    large: Arc<Semaphore>,
}

impl Default for Fingerprinting {
    fn default() -> Self {
        Self { large: Arc::new(Semaphore::new(1)) }
    }
}

impl Fingerprinting {
    /// Computes a request's fingerprint by a recipe. `None` if the recipe's secret is gone.
    pub(super) async fn fingerprint(
        &self,
        recipe: &Recipe,
        route: &Arc<Route>,
        request: (&request::Parts, &RequestPath<'_>),
        body: &Bytes,
        secrets: &Secrets,
    ) -> Option<Fingerprint> {
        let secrets = secrets.clone();
        self.look_at(recipe, route, request, body, move |recipe, input| recipe.fingerprint(input, &secrets)).await
    }

    /// Computes a request's fingerprint by its route's own recipe, with the bits of its parts unless it is `known`.
    pub(super) async fn fingerprint_with_bits(
        &self,
        route: &Arc<Route>,
        request: (&request::Parts, &RequestPath<'_>),
        body: &Bytes,
        secrets: &Secrets,
        (key, known): (PartKey, Option<Fingerprint>),
    ) -> (Fingerprint, Option<PartBits>) {
        let secrets = secrets.clone();
        let look = move |recipe: &Recipe, input: &FingerprintInput<'_>| {
            recipe.fingerprint_with_bits(input, &secrets, &key, known)
        };
        let made = self.look_at(&route.recipe, route, request, body, look).await;
        made.expect("a route's own recipe uses the current secret")
    }

    /// Looks at the parts of a request that a recipe may include: at those of a large one on another thread.
    pub(super) async fn look_at<T: Send + 'static>(
        &self,
        recipe: &Recipe,
        route: &Arc<Route>,
        (head, path): (&request::Parts, &RequestPath<'_>),
        body: &Bytes,
        look: impl FnOnce(&Recipe, &FingerprintInput<'_>) -> T + Send + 'static,
    ) -> T {
        let large_body = if recipe.is_slow() { LARGE_DOCUMENT } else { LARGE_BODY };
        if recipe.body_size_limit(&head.headers, body.len()) < large_body {
            return look(recipe, &fingerprint_input(route, (head, path), body));
        }
        let (recipe, route, body) = (recipe.clone(), Arc::clone(route), body.clone());
        let (mut owned, ()) = request::Request::new(()).into_parts();
        (owned.method, owned.uri, owned.headers) = (head.method.clone(), head.uri.clone(), head.headers.clone());
        self.run_on_thread(move || {
            let path = RequestPath::new(owned.uri.path());
            look(&recipe, &fingerprint_input(&route, (&owned, &path), &body))
        })
        .await
    }

    /// Runs work on a large body on another thread, after that on others of this worker. In a box: the futures of all
    /// requests would be a kilobyte longer, and each is moved when it is made.
    pub(in crate::gate) fn run_on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = T> + Send>> {
        let large = Arc::clone(&self.large);
        Box::pin(async move {
            // The thread keeps it, also for a client that leaves.
            let permit = large.acquire_owned().await.expect("the semaphore is never closed");
            let working = spawn_blocking(move || {
                let _permit = permit;
                work()
            });
            match working.await {
                Ok(result) => result,
                Err(stopped) => panic::resume_unwind(stopped.into_panic()),
            }
        })
    }
}

/// The parts of a request that a fingerprint may include.
pub(super) fn fingerprint_input<'a>(
    route: &'a Route,
    (head, path): (&'a request::Parts, &'a RequestPath<'a>),
    body: &'a [u8],
) -> FingerprintInput<'a> {
    FingerprintInput {
        method: head.method.as_str(),
        path,
        pattern: Some(&route.path),
        host: named_host(head),
        query: head.uri.query(),
        headers: &head.headers,
        body,
    }
}

//! Computes a request's fingerprint: that of a large body on another thread, so that no other request of the worker waits for it.

use std::panic;
use std::sync::Arc;

use bytes::Bytes;
use http::request;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{fingerprint_input, fingerprint_path};
use crate::config::Route;
use crate::domain::fingerprint::{Fingerprint, FingerprintInput, Secrets};

/// The size from which a body is large. At the 300 MB/s that BENCHMARKS.md aims at, 64 KiB of JSON take 0.22 ms.
const LARGE_BODY: usize = 64 * 1024;

/// Computes fingerprints for one worker.
#[derive(Debug)]
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
    /// Computes a request's fingerprint by its route's recipe.
    pub(super) async fn fingerprint(
        &self,
        head: &request::Parts,
        body: &Bytes,
        route: &Route,
        secrets: &Secrets,
    ) -> Fingerprint {
        let path = fingerprint_path(route, head);
        if body.len() < LARGE_BODY || !route.recipe.reads_body() {
            return fingerprint(route, &fingerprint_input(head, &path, body), secrets);
        }
        // The thread keeps it, also for a client that leaves.
        let permit = Arc::clone(&self.large).acquire_owned().await.expect("the semaphore is never closed");
        let (recipe, secrets, path, body) = (route.recipe.clone(), secrets.clone(), path.into_owned(), body.clone());
        let (method, uri, headers) = (head.method.clone(), head.uri.clone(), head.headers.clone());
        let hashing = spawn_blocking(move || {
            let _permit = permit;
            let (method, query) = (method.as_str(), uri.query());
            recipe
                .fingerprint(&FingerprintInput { method, path: &path, query, headers: &headers, body: &body }, &secrets)
        });
        match hashing.await {
            Ok(fingerprint) => fingerprint.expect(OWN_SECRET),
            Err(stopped) => panic::resume_unwind(stopped.into_panic()),
        }
    }
}

/// Computes a request's fingerprint by its route's recipe, on this thread.
pub(super) fn fingerprint(route: &Route, input: &FingerprintInput<'_>, secrets: &Secrets) -> Fingerprint {
    route.recipe.fingerprint(input, secrets).expect(OWN_SECRET)
}

const OWN_SECRET: &str = "a route's own recipe uses the current secret";

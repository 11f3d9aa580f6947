//! Operations: requests that were accepted and are delivered later.

use serde_json::Value;

use super::client::Request;
use super::{Proxy, Response, TEST_TIMEOUT, World, eventually};

/// The path of an accepted request's operation.
pub fn operation_path(accepted: &Response) -> String {
    operation_of(accepted, "queued")
}

/// The path of the operation that a 202 with this `Oncegate-Status` names.
pub fn operation_of(accepted: &Response, status: &str) -> String {
    assert_eq!((accepted.status, accepted.oncegate_status()), (202, Some(status)), "{}", accepted.text());
    accepted.field("location").expect("it says where to ask").to_owned()
}

/// Reads an operation's state.
pub async fn operation(proxy: &Proxy, operation_path: &str) -> Value {
    let response = proxy.client().get(operation_path).send().await;
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

/// Waits until the operation is in that state, and returns it.
pub async fn operation_when(proxy: &Proxy, operation_path: &str, state: &str) -> Value {
    let found = async || Some(operation(proxy, operation_path).await).filter(|operation| operation["state"] == state);
    eventually(TEST_TIMEOUT, found).await
}

impl World {
    /// Sends a request that must be accepted, and returns its operation's path.
    pub async fn accepts(&self, key: &str) -> String {
        operation_path(&self.pay(key).send().await)
    }

    pub async fn operation_when(&self, operation_path: &str, state: &str) -> Value {
        operation_when(&self.proxy, operation_path, state).await
    }

    pub fn as_caller(&self, request: Request, who: &str) -> Request {
        request.field("Authorization", &format!("Bearer {who}"))
    }
}

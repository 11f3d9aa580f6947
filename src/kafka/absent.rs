//! The producer of a program that was built without the feature `kafka`: there is none.

use std::convert::Infallible;

use super::{KafkaError, NewRecord};
use oncegate_settings::KafkaCluster;

/// A producer that cannot exist.
pub struct AbsentProducer(Infallible);

impl AbsentProducer {
    /// Fails.
    ///
    /// # Errors
    /// The program was built without the feature.
    pub async fn connect(_cluster: &KafkaCluster) -> Result<Self, String> {
        Err("this program was built without the feature `kafka`".into())
    }

    /// Is never called.
    ///
    /// # Errors
    /// None.
    pub async fn produce(&self, _record: NewRecord) -> Result<(), KafkaError> {
        match self.0 {}
    }

    /// Is never called.
    pub async fn close(&self) {
        match self.0 {}
    }
}

//! The producer of a program that was built without the feature `kafka`. Its configuration can name no topic.

use std::convert::Infallible;

use super::NewRecord;
use crate::publish_error::PublishError;
use oncegate_settings::KafkaCluster;

/// A producer that cannot exist.
pub struct AbsentProducer(Infallible);

impl AbsentProducer {
    pub(crate) async fn connect(_cluster: &KafkaCluster) -> Result<Self, String> {
        Err("this program was built without the feature `kafka`".into())
    }

    pub(crate) async fn produce(&self, _record: NewRecord) -> Result<(), PublishError> {
        match self.0 {}
    }
}

//! Writes records: idempotent, acknowledged by all in-sync replicas, many at once.

use std::sync::Arc;
use std::time::Duration;

use krafka::error::ErrorCode;
use krafka::producer::{Acks, Producer};
use krafka::{CloseOptions, Kafka, KrafkaError, Record};
use tokio::sync::Mutex;

use super::NewRecord;
use super::connection::{self, REQUEST_TIMEOUT, describe};
use crate::publish_error::PublishError;
use oncegate_settings::KafkaCluster;

/// The time limit of a record that is written: three tries.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of closing: as long as a broker that answers needs for what is in flight.
const CLOSE_TIMEOUT: Duration = REQUEST_TIMEOUT;

/// An idempotent producer.
pub struct KafkaProducer {
    kafka: Kafka,
    /// The client; `None` after an error with which it can write nothing more. Its lock is taken in turn, so records
    /// are queued in the order of the calls.
    client: Mutex<Option<Arc<Producer>>>,
}

impl KafkaProducer {
    /// Connects to a cluster, and gets a producer's id.
    ///
    /// # Errors
    /// The cause, without the user and the password: no broker is there, or the login may not write.
    pub async fn connect(cluster: &KafkaCluster) -> Result<Self, String> {
        Self::on(connection::connect(cluster).await?).await
    }

    /// The same over a connection that is there.
    pub async fn on(kafka: Kafka) -> Result<Self, String> {
        let client = open(&kafka).await.map_err(describe)?;
        Ok(Self { kafka, client: Mutex::new(Some(client)) })
    }

    /// Writes a record, and returns once all in-sync replicas have it. Any number may be in flight. Records of one key
    /// keep the order of the calls, unless one fails: what was behind it may be written then. A call that is dropped
    /// may have written its record.
    ///
    /// # Errors
    /// The record is not known to be written, after half a minute at the latest.
    pub async fn produce(&self, record: NewRecord) -> Result<(), PublishError> {
        let mut new = Record::new(&*record.topic, record.value);
        new.key = record.key;
        new.headers = record.headers;
        new.validate().map_err(|error| PublishError::Refused(describe(error)))?;
        let mut client = self.client.lock().await;
        let current = match &*client {
            Some(current) => Arc::clone(current),
            None => Arc::clone(client.insert(open(&self.kafka).await.map_err(sort)?)),
        };
        let queued = current.enqueue(new).await;
        drop(client);
        let written = match queued {
            Ok(delivery) => delivery.await.map(drop),
            Err(error) => Err(error),
        };
        if written.as_ref().is_err_and(KrafkaError::is_fatal) {
            self.replace(&current).await;
        }
        written.map_err(sort)
    }

    /// Gives a client up that can write nothing more, unless another call has.
    async fn replace(&self, failed: &Arc<Producer>) {
        let mut client = self.client.lock().await;
        if client.as_ref().is_some_and(|current| Arc::ptr_eq(current, failed)) {
            *client = None;
            drop(client);
            close(failed).await;
        }
    }

    /// Waits for the records in flight. A later record opens a client anew.
    pub async fn close(&self) {
        let client = self.client.lock().await.take();
        if let Some(client) = client {
            close(&client).await;
        }
    }
}

async fn open(kafka: &Kafka) -> krafka::Result<Arc<Producer>> {
    let producer = kafka
        .producer()
        .idempotent(true)
        .acks(Acks::All)
        .metrics_push(false)
        .delivery_timeout(DELIVERY_TIMEOUT)
        .max_block(REQUEST_TIMEOUT);
    producer.build().await.map(Arc::new)
}

async fn close(client: &Producer) {
    if let Err(error) = client.close_with(CloseOptions::new().timeout(CLOSE_TIMEOUT)).await {
        tracing::debug!(cause = describe(error), "a producer of Kafka was closed with records in flight");
    }
}

/// Tells whether another try may help. The brokers refuse a record that is larger than they allow, or not what its
/// topic is for.
fn sort(error: KrafkaError) -> PublishError {
    let is_refused = match &error {
        KrafkaError::Broker { code, .. } => matches!(
            code,
            ErrorCode::MessageTooLarge
                | ErrorCode::RecordListTooLarge
                | ErrorCode::InvalidRecord
                | ErrorCode::PolicyViolation
        ),
        // The client's own limits, which are far above those of brokers.
        KrafkaError::Config { .. } => true,
        _ => false,
    };
    let cause = describe(error);
    if is_refused { PublishError::Refused(cause) } else { PublishError::Away(cause) }
}

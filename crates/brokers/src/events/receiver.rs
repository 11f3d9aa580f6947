//! The places that events go to: a URL, an exchange of RabbitMQ, a topic of Kafka.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use sha2::Sha256;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::message::{EventMessage, MEDIA_TYPE};
use crate::amqp::AmqpPublisher;
use crate::kafka::{KafkaProducer, NewRecord};
use crate::publish_error::PublishError;
use oncegate_http::body::Body;
use oncegate_http::upstream::UpstreamClient;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Broker, EventTarget, KafkaCluster, UpstreamTlsConfig, WebhookSecret};
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::Trust;

/// The time limit of one try. Receivers of webhooks are asked to answer within seconds.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for RabbitMQ, whose confirmation may take 10 s, and for Kafka, whose own limit is 30 s.
const AMQP_TRY_TIMEOUT: Duration = Duration::from_secs(12);
const KAFKA_TRY_TIMEOUT: Duration = Duration::from_secs(40);

/// The time limit of reading an answer's body, which says nothing.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which a connection to a URL is kept: below the usual keep-alive time of services, five seconds.
const IDLE: Duration = Duration::from_secs(4);

/// The most of an answer's body that is read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub(super) enum EventReceiver {
    Http {
        client: UpstreamClient,
        host: HeaderValue,
        target: PathAndQuery,
        secret: Option<WebhookSecret>,
    },
    Amqp {
        broker: Broker,
        exchange: Box<str>,
        routing_key: Option<Box<str>>,
        trust: Trust,
        publisher: Mutex<Option<Arc<AmqpPublisher>>>,
    },
    Kafka {
        cluster: KafkaCluster,
        topic: Arc<str>,
        producer: Mutex<Option<Arc<KafkaProducer>>>,
    },
}

impl EventReceiver {
    pub fn new(target: &EventTarget, trust: &Trust, slots: &UpstreamSlots) -> Self {
        match target {
            EventTarget::Http { upstream, target, secret } => {
                let tls = UpstreamTlsConfig::with_trust(trust.clone());
                Self::Http {
                    client: UpstreamClient::new(upstream, TRY_TIMEOUT, IDLE, &tls, slots),
                    host: HeaderValue::from_str(upstream.host()).expect("a host is visible ASCII"),
                    target: target.clone(),
                    secret: secret.clone(),
                }
            }
            EventTarget::Amqp { broker, exchange, routing_key } => Self::Amqp {
                broker: broker.clone(),
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                trust: trust.clone(),
                publisher: Mutex::default(),
            },
            EventTarget::Kafka(topic) => Self::Kafka {
                cluster: topic.cluster.clone(),
                topic: (&*topic.topic).into(),
                producer: Mutex::default(),
            },
        }
    }

    /// Opens the connection to a broker, unless it is open.
    pub async fn connect(&self) -> Result<(), String> {
        let connecting = async {
            match self {
                Self::Http { .. } => Ok(()),
                Self::Amqp { broker, exchange, trust, publisher, .. } => {
                    connected(publisher, AmqpPublisher::connect(broker, exchange, trust)).await
                }
                Self::Kafka { cluster, producer, .. } => connected(producer, KafkaProducer::connect(cluster)).await,
            }
        };
        let late = |_| format!("no connection in {} s", TRY_TIMEOUT.as_secs());
        timeout(TRY_TIMEOUT, connecting).await.map_err(late)?
    }

    /// The time after which a try has ended.
    pub fn longest_try(&self) -> Duration {
        match self {
            Self::Http { .. } => TRY_TIMEOUT,
            Self::Amqp { .. } => AMQP_TRY_TIMEOUT,
            Self::Kafka { .. } => KAFKA_TRY_TIMEOUT,
        }
    }

    /// Publishes an event. Once this returns, the receiver has it, or the try counts as failed.
    pub async fn publish(&self, message: &EventMessage) -> Result<(), PublishError> {
        let limit = self.longest_try();
        let late = |_| PublishError::Away(format!("no answer in {} s", limit.as_secs()));
        timeout(limit, self.try_to_publish(message)).await.map_err(late)?
    }

    async fn try_to_publish(&self, message: &EventMessage) -> Result<(), PublishError> {
        match self {
            Self::Http { client, host, target, secret } => {
                post(client, webhook(host, target, secret.as_ref(), message, SystemTime::now())).await
            }
            Self::Amqp { routing_key, publisher, .. } => {
                let open = open(publisher).await?;
                let key = routing_key.as_deref().unwrap_or(&message.kind);
                let published = open.publish(key, &message.id, &message.kind, MEDIA_TYPE, &message.json).await;
                if let Err(PublishError::Away(_)) = published {
                    disconnect(publisher, &open).await;
                }
                published
            }
            Self::Kafka { topic, producer, .. } => {
                let open = open(producer).await?;
                // The content type makes it an event in structured mode (CloudEvents, Kafka protocol binding, section
                // 3.3).
                let content_type = ("content-type".to_owned(), Some(Bytes::from_static(MEDIA_TYPE.as_bytes())));
                let record = NewRecord {
                    topic: Arc::clone(topic),
                    key: Some(message.record.clone().into()),
                    value: message.json.clone(),
                    headers: vec![content_type],
                };
                open.produce(record).await
            }
        }
    }
}

/// Opens a connection, unless it is open.
async fn connected<P>(
    place: &Mutex<Option<Arc<P>>>,
    connect: impl Future<Output = Result<P, String>>,
) -> Result<(), String> {
    let mut open = place.lock().await;
    if open.is_none() {
        *open = Some(Arc::new(connect.await?));
    }
    Ok(())
}

/// The open connection. It is none after another try has found it broken.
async fn open<P>(place: &Mutex<Option<Arc<P>>>) -> Result<Arc<P>, PublishError> {
    place.lock().await.clone().ok_or_else(|| PublishError::Away("the connection was lost".into()))
}

/// Forgets a connection that has failed, unless another one is open by now.
async fn disconnect<P>(place: &Mutex<Option<Arc<P>>>, failed: &Arc<P>) {
    let mut open = place.lock().await;
    if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, failed)) {
        *open = None;
    }
}

/// The request of a webhook, by the Standard Webhooks: the signature covers the id, the time and the body.
fn webhook(
    host: &HeaderValue,
    target: &PathAndQuery,
    secret: Option<&WebhookSecret>,
    message: &EventMessage,
    now: SystemTime,
) -> Request<Body> {
    let visible = |text: &str| HeaderValue::from_str(text).expect("visible ASCII");
    let timestamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut request = Request::new(Body::whole(message.json.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from(target.clone());
    let headers = request.headers_mut();
    headers.insert(HOST, host.clone());
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(CONTENT_LENGTH, message.json.len().into());
    headers.insert("webhook-id", visible(&message.id));
    headers.insert("webhook-timestamp", timestamp.into());
    if let Some(WebhookSecret(secret)) = secret {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        mac.update(format!("{}.{timestamp}.", message.id).as_bytes());
        mac.update(&message.json);
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        headers.insert("webhook-signature", visible(&format!("v1,{signature}")));
    }
    request
}

async fn post(client: &UpstreamClient, mut request: Request<Body>) -> Result<(), PublishError> {
    let answer = client.call(&mut request).await;
    let answer =
        answer.map_err(|error| PublishError::Away(format!("{error}: {}", error_causes(&error).unwrap_or_default())))?;
    let status = answer.status();
    // Read to its end, so that the connection is free for the next event. The status alone says whether it was taken.
    drop(timeout(DRAIN_TIMEOUT, Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect()).await);
    let message = format!("the answer has status {}", status.as_u16());
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(PublishError::Away(message)),
        status if status.is_server_error() => Err(PublishError::Away(message)),
        // Redirections are not followed: they may lead to a host that the configuration does not name.
        _ => Err(PublishError::Refused(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_signed_as_the_standard_webhooks_say() {
        // The example of the specification's reference libraries.
        let secret = WebhookSecret(STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap().into());
        let message = EventMessage {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek".into(),
            kind: String::new(),
            record: String::new(),
            json: r#"{"test": 2432232314}"#.into(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        let request = webhook(&HeaderValue::from_static("h"), &"/".parse().unwrap(), Some(&secret), &message, now);
        let signature = &request.headers()["webhook-signature"];
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}

//! Sends batches with the client's connections, on the backend's thread.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::tls::{RootCertificates, SslMode, TlsError, TlsSettings, client_config};
use rskafka::{
    BackoffConfig,
    chrono::DateTime,
    client::{
        Client, ClientBuilder, Credentials, SaslConfig,
        error::{Error, ProtocolError},
        partition::{Compression, PartitionClient, UnknownTopicHandling},
    },
    record::Record,
};
use rustls::ClientConfig;
use tokio::runtime::Runtime;
use tracing::subscriber::{NoSubscriber, with_default};

use super::{
    KafkaSetupError,
    messages::{KafkaMessage, batch_messages, partition_index},
};
use crate::{
    backends::outbox::{SendError, ValueBatch},
    settings::{KafkaSettings, SaslMechanism},
};

/// Time for attempts of the client itself before an error is reported.
const RETRY_TIME: Duration = Duration::from_millis(500);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The reason why a batch was not delivered as a whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum KafkaError {
    #[error("{0}")]
    Client(String),
    #[error(
        "the topic {0:?} does not exist, or the user may not see it: create it with \
         `kafka-topics.sh --create`"
    )]
    NoTopic(String),
    #[error("no reply in time")]
    Timeout,
    /// The broker refuses messages as such.
    #[error("partition {partition}: {reason}")]
    Refused { partition: i32, reason: String, values: u64 },
}

impl SendError for KafkaError {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    fn refused_values(&self, batch: &ValueBatch) -> u64 {
        match self {
            Self::Refused { values, .. } => *values,
            _ => batch.values,
        }
    }
}

/// The client with its settings and the progress of the current batch.
pub(super) struct KafkaConnection {
    runtime: Runtime,
    brokers: Vec<String>,
    topic: String,
    tls: Option<Arc<ClientConfig>>,
    sasl: Option<SaslConfig>,
    connected: Option<ConnectedTopic>,
    progress: BatchProgress,
}

/// A client that knows the topic's partitions.
struct ConnectedTopic {
    client: Client,
    topic: String,
    /// The partitions of the topic, ascending, with those connected so far.
    partitions: Vec<(i32, Option<PartitionClient>)>,
}

/// The outcome of each message of a batch so far.
#[derive(Default)]
struct BatchProgress {
    /// The batch's number.
    number: Option<u64>,
    /// Whether each message was accepted or refused.
    finished: Vec<bool>,
    /// The last refusal, with the values of all.
    refused: Option<(i32, String, u64)>,
}

impl KafkaConnection {
    pub(super) fn new(
        settings: &KafkaSettings,
        password: Option<String>,
    ) -> Result<Self, KafkaSetupError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(KafkaSetupError::Runtime)?;
        let tls = settings.tls.then(|| tls_config(settings.ca_file.as_deref())).transpose()?;
        let credentials = settings.user.clone().zip(password);
        let credentials = credentials.map(|(user, password)| Credentials::new(user, password));
        let sasl = credentials.map(|credentials| match settings.mechanism {
            SaslMechanism::Plain => SaslConfig::Plain(credentials),
            SaslMechanism::ScramSha256 => SaslConfig::ScramSha256(credentials),
            SaslMechanism::ScramSha512 => SaslConfig::ScramSha512(credentials),
        });
        Ok(Self {
            runtime,
            brokers: settings.brokers.clone(),
            topic: settings.topic.clone(),
            tls,
            sasl,
            connected: None,
            progress: BatchProgress::default(),
        })
    }

    /// Sends a batch, except for the messages of it that were finished by earlier attempts.
    ///
    /// # Errors
    ///
    /// Some messages were not accepted. They were refused if all others are delivered.
    pub(super) fn send(&mut self, batch: &[u8], deadline: Instant) -> Result<(), KafkaError> {
        let (number, messages) = batch_messages(batch);
        if self.progress.number != Some(number) {
            let finished = vec![false; messages.len()];
            self.progress = BatchProgress { number: Some(number), finished, refused: None };
        }
        let Self { runtime, connected, progress, .. } = self;
        let (brokers, topic) = (self.brokers.clone(), self.topic.clone());
        let (tls, sasl) = (self.tls.clone(), self.sasl.clone());
        let delivery = async {
            let topic = match connected {
                Some(topic) => topic,
                None => connected.insert(connect(brokers, topic, tls, sasl).await?),
            };
            topic.deliver(&messages, progress).await
        };
        // The client logs each attempt; its errors are reported here.
        let result = with_default(NoSubscriber::default(), || {
            runtime.block_on(async {
                let timeout = tokio::time::timeout_at(deadline.into(), delivery);
                timeout.await.unwrap_or(Err(KafkaError::Timeout))
            })
        });
        if result.is_err() {
            // The next attempt starts with fresh connections and partitions.
            self.connected = None;
            return result;
        }
        match self.progress.refused.take() {
            None => Ok(()),
            Some((partition, reason, values)) => {
                Err(KafkaError::Refused { partition, reason, values })
            }
        }
    }
}

async fn connect(
    brokers: Vec<String>,
    topic: String,
    tls: Option<Arc<ClientConfig>>,
    sasl: Option<SaslConfig>,
) -> Result<ConnectedTopic, KafkaError> {
    let backoff = BackoffConfig {
        init_backoff: RETRY_PAUSE,
        max_backoff: RETRY_TIME / 2,
        base: 2.0,
        deadline: Some(RETRY_TIME),
    };
    let mut builder =
        ClientBuilder::new(brokers).client_id("howdah-statsd").backoff_config(backoff);
    if let Some(tls) = tls {
        builder = builder.tls_config(tls);
    }
    if let Some(sasl) = sasl {
        builder = builder.sasl_config(sasl);
    }
    let client = builder.build().await.map_err(|error| client_error(&error))?;
    let topics = client.list_topics().await.map_err(|error| client_error(&error))?;
    let found = topics.into_iter().find(|found| found.name == topic);
    let partitions = found.map(|found| found.partitions).unwrap_or_default();
    if partitions.is_empty() {
        return Err(KafkaError::NoTopic(topic));
    }
    let partitions = partitions.into_iter().map(|partition| (partition, None)).collect();
    Ok(ConnectedTopic { client, topic, partitions })
}

impl ConnectedTopic {
    /// Sends the messages that are not finished, partition by partition.
    async fn deliver(
        &mut self,
        messages: &[KafkaMessage<'_>],
        progress: &mut BatchProgress,
    ) -> Result<(), KafkaError> {
        let count = self.partitions.len();
        let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, message) in messages.iter().enumerate().filter(|(at, _)| !progress.finished[*at]) {
            parts.entry(partition_index(message.key, count)).or_default().push(at);
        }
        for (index, part) in parts {
            let records = part.iter().map(|at| record(&messages[*at])).collect();
            let (partition, client) = self.partition_client(index).await?;
            match client.produce(records, Compression::NoCompression).await {
                Ok(_) => {}
                Err(error) => {
                    let Some(reason) = refusal(&error) else { return Err(client_error(&error)) };
                    let values: u64 = part.iter().map(|at| messages[*at].values).sum();
                    let before = progress.refused.take().map_or(0, |(_, _, values)| values);
                    progress.refused = Some((partition, reason, before + values));
                }
            }
            part.into_iter().for_each(|at| progress.finished[at] = true);
        }
        Ok(())
    }

    async fn partition_client(
        &mut self,
        index: usize,
    ) -> Result<(i32, &PartitionClient), KafkaError> {
        let (partition, known) = &mut self.partitions[index];
        let client = match known {
            Some(client) => client,
            None => {
                let handling = UnknownTopicHandling::Error;
                let client = self.client.partition_client(self.topic.clone(), *partition, handling);
                known.insert(client.await.map_err(|error| client_error(&error))?)
            }
        };
        Ok((*partition, client))
    }
}

fn record(message: &KafkaMessage<'_>) -> Record {
    Record {
        key: Some(message.key.to_vec()),
        value: Some(message.value.to_vec()),
        headers: BTreeMap::new(),
        timestamp: DateTime::from_timestamp_millis(message.time_ms).unwrap_or_default(),
    }
}

fn client_error(error: &Error) -> KafkaError {
    KafkaError::Client(error.to_string())
}

/// Returns the reason if the broker would refuse the messages again.
fn refusal(error: &Error) -> Option<String> {
    let Error::ServerError { protocol_error, error_message, .. } = error else { return None };
    let is_refusal = matches!(
        protocol_error,
        ProtocolError::MessageTooLarge
            | ProtocolError::RecordListTooLarge
            | ProtocolError::InvalidRecord
    );
    let advice = match protocol_error {
        ProtocolError::InvalidRecord => "",
        _ => "; lower batch-bytes, or raise max.message.bytes of the topic",
    };
    let message = error_message.as_deref().map_or(String::new(), |text| format!(" ({text})"));
    is_refusal.then(|| format!("{protocol_error:?}{message}{advice}"))
}

/// Returns a configuration that verifies the brokers' certificates and names.
fn tls_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut settings = TlsSettings::default();
    settings.mode = SslMode::VerifyFull;
    settings.root_certificates = match ca_file {
        Some(path) => RootCertificates::File(path.to_owned()),
        None => RootCertificates::System,
    };
    let mut config = ClientConfig::clone(&*client_config(&settings)?);
    // The shared configuration names PostgreSQL's ALPN protocol.
    config.alpn_protocols = Vec::new();
    Ok(Arc::new(config))
}

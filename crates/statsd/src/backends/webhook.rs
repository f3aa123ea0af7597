//! The webhook backend: posts each DogStatsD event and service check as a JSON document.
//!
//! ```json
//! {"type":"event","time":1772359140,"received":1772359195.25,"host":"web1","title":"Deploy",…}
//! ```

use std::{fmt, sync::Arc, time::Duration};

use howdah_http::client::{EndpointError, Headers, HttpEndpoint, authorization};

use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    http::{AGENT, HttpSender},
    messages,
    outbox::ValueBatch,
};
use crate::{
    flush::FlushSnapshot,
    js::{self, Spacing},
    settings,
};

/// The backend that posts events and service checks.
pub struct WebhookBackend {
    poster: HttpSender,
}

impl WebhookBackend {
    /// Creates the backend and reads the token file. The connection is opened by the first flush
    /// with a message.
    ///
    /// # Errors
    ///
    /// See [`EndpointError`].
    pub fn new(settings: &settings::WebhookSettings) -> Result<Self, EndpointError> {
        let mut headers =
            Headers::from_iter(authorization("Bearer", settings.token_file.as_ref())?);
        headers.push(("Content-Type", "application/json".to_owned()));
        let endpoint =
            HttpEndpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        Ok(Self { poster: HttpSender::new(endpoint, settings.spool_bytes).without_path() })
    }
}

impl fmt::Debug for WebhookBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receiver = self.poster.receiver();
        f.debug_struct("WebhookBackend").field("receiver", &receiver).finish()
    }
}

impl MetricBackend for WebhookBackend {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { messages: true, ..SnapshotRequirements::MINIMAL }
    }

    fn status(&self) -> BackendStatus {
        self.poster.status()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        self.poster.flush(snapshot.interval, |sink| {
            for message in &*snapshot.messages {
                let bytes = js::json(&messages::document(message), Spacing::Compact).into_bytes();
                sink(ValueBatch::new(bytes, 1));
            }
        })
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        self.poster.finish(timeout)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        self.poster.hand_over(timeout, spool)
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.poster.adopt(spool);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        thread,
    };

    use serde_json::json;

    use super::*;
    use crate::backends::testing::snapshot_with_messages;

    /// Answers requests with these status lines, one connection each; returns the requests.
    fn receive(
        listener: TcpListener,
        statuses: Vec<&'static str>,
    ) -> thread::JoinHandle<Vec<String>> {
        thread::spawn(move || {
            let request = |status: &str| {
                let (mut stream, _) = listener.accept().unwrap();
                let text = read_request(&mut stream);
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
                text
            };
            statuses.into_iter().map(request).collect()
        })
    }

    fn read_request(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "incomplete request: {text}");
            text += std::str::from_utf8(&buffer[..length]).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let expected = head.lines().find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ")?.parse().ok()
            });
            if body.len() >= expected.unwrap_or(0) {
                return text;
            }
        }
    }

    fn webhook(listener: &TcpListener) -> WebhookBackend {
        let url = format!("http://{}/hook?key=secret", listener.local_addr().unwrap());
        let settings: settings::WebhookSettings =
            toml::from_str(&format!("url = {url:?}")).unwrap();
        WebhookBackend::new(&settings).unwrap()
    }

    #[test]
    fn each_message_is_posted_as_document() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut webhook = webhook(&listener);
        let requests = receive(listener, vec!["204 No Content", "200 OK"]);
        webhook.flush(&Arc::new(snapshot_with_messages())).unwrap();
        let requests = requests.join().unwrap();
        assert!(requests[0].starts_with("POST /hook?key=secret HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(requests[0].to_lowercase().contains("content-type: application/json"));
        let documents: Vec<serde_json::Value> = requests
            .iter()
            .map(|request| serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap())
            .collect();
        assert_eq!(
            documents,
            [
                json!({
                    "type": "event", "time": 1_772_359_140, "received": 1_772_359_195.25,
                    "host": "web1", "title": "Deploy \"7\"", "text": "two\nlines\u{fffd}",
                    "aggregation_key": "deploys", "priority": "low", "source_type": null,
                    "alert_type": "success", "tags": { "env": "prod", "canary": "" }
                }),
                json!({
                    "type": "service_check", "time": 1_772_359_197, "received": 1_772_359_197,
                    "host": null, "name": "db.up", "status": "critical", "message": "no reply",
                    "tags": {}
                }),
            ]
        );
        assert!(!format!("{webhook:?}").contains("secret"));
    }

    #[test]
    fn refused_message_is_lost_and_unavailable_receiver_is_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut webhook = webhook(&listener);
        let requests = receive(listener, vec!["400 Bad Request", "503 Unavailable", "200 OK"]);
        let error = webhook.flush(&Arc::new(snapshot_with_messages())).unwrap_err();
        assert!(!error.receiver.contains("secret"), "{}", error.receiver);
        assert_eq!(webhook.status().get("lost_values"), Some(1.0));
        assert_eq!(webhook.status().get("spool_batches"), Some(1.0));
        webhook.finish(Duration::from_secs(30)).unwrap();
        let requests = requests.join().unwrap();
        assert!(requests[1].contains("service_check") && requests[2].contains("service_check"));
        assert_eq!(webhook.status().get("spool_batches"), Some(0.0));
    }
}

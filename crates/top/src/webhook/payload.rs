//! Formats messages for the supported kinds of receivers.

use std::fmt::Write as _;

use howdah_collect::sanitized_line;
use howdah_http::client::Headers;
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use super::WebhookFormat;
use crate::{
    rules::{Alert, AlertChange, SessionInfo},
    slow_statements::SlowStatement,
};

/// An event that webhooks report.
#[derive(Clone, Debug, PartialEq)]
pub enum WebhookEvent {
    /// A statement exceeded the slow threshold.
    Slow(SlowStatement),
    /// An alert started or ended.
    Alert(AlertChange),
}

/// A message to a webhook: the events that are sent in one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookMessage {
    /// Identifies the message, so that receivers can detect duplicates.
    pub id: String,
    /// The events to report, oldest first.
    pub events: Vec<WebhookEvent>,
    /// Number of events that were dropped and not reported yet, because the queue was full or their
    /// message was given up.
    pub dropped: u64,
}

/// Maximum number of events in a text; further ones are only counted.
const TEXT_EVENTS_MAX: usize = 10;

/// Maximum length of a statement in a text, in characters: Slack truncates texts at 40,000.
const SQL_CHARS_MAX: usize = 2_900;

impl WebhookMessage {
    /// Returns the body of the HTTP request, in the given format.
    pub(super) fn body(&self, format: &WebhookFormat) -> Vec<u8> {
        let document = match format {
            WebhookFormat::Slack => json!({ "text": self.text() }),
            WebhookFormat::Document { .. } => self.document(),
        };
        document.to_string().into_bytes()
    }

    /// Returns the headers of a request that is sent at `seconds` since 1970. If there is a key,
    /// the signature covers the time, a dot and the body, so that receivers can reject a message
    /// that was intercepted and is sent again later.
    pub(super) fn headers(&self, format: &WebhookFormat, seconds: i64, body: &[u8]) -> Headers {
        let mut headers = vec![("Idempotency-Key", self.id.clone())];
        if let WebhookFormat::Document { key: Some(key) } = format {
            let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
            context.update(seconds.to_string().as_bytes());
            context.update(b".");
            context.update(body);
            let mut signature = "sha256=".to_owned();
            for byte in context.sign().as_ref() {
                let _ = write!(signature, "{byte:02x}");
            }
            headers.push(("Howdah-Timestamp", seconds.to_string()));
            headers.push(("Howdah-Signature", signature));
        }
        headers
    }

    /// Formats the events as text for a chat.
    fn text(&self) -> String {
        let mut text = String::new();
        if self.events.len() > 1 {
            let _ = writeln!(text, "{} events:", self.events.len());
        }
        for event in self.events.iter().take(TEXT_EVENTS_MAX) {
            match event {
                WebhookEvent::Slow(slow) => slow_text(&mut text, slow),
                WebhookEvent::Alert(change) => alert_text(&mut text, change),
            }
        }
        if let Some(more @ 1..) = self.events.len().checked_sub(TEXT_EVENTS_MAX) {
            let _ = writeln!(text, "… and {more} more");
        }
        if self.dropped > 0 {
            let _ = writeln!(text, "{} other events were dropped", self.dropped);
        }
        text
    }

    fn document(&self) -> Value {
        let events: Vec<Value> = self.events.iter().map(event_document).collect();
        json!({ "version": 1, "id": self.id, "dropped": self.dropped, "events": events })
    }
}

/// Formats a slow statement in pgtop's wording.
fn slow_text(text: &mut String, slow: &SlowStatement) {
    let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
    let _ = write!(
        text,
        "Slow postgres query on `{}` database `{}` for user `{}`\n\
         Query ID {pid} (has been running for {seconds:.0} s):\n\n```\n{}\n```\n",
        SlackCode(server),
        SlackCode(database),
        SlackCode(user),
        SlackCode(&truncated(query))
    );
}

fn alert_text(text: &mut String, change: &AlertChange) {
    let alert = change.alert();
    let value = alert.measure.format_value(alert.value);
    let _ = match change {
        AlertChange::Started(_) => {
            write!(
                text,
                "Alert on `{}`: `{}`, now {value}",
                SlackCode(&alert.server),
                SlackCode(&alert.rule)
            )
        }
        AlertChange::Ended(_, lasted) => {
            let lasted = crate::units::format_duration(lasted.as_secs_f64());
            write!(
                text,
                "Over on `{}` after {lasted}: `{}`, last {value}",
                SlackCode(&alert.server),
                SlackCode(&alert.rule)
            )
        }
    };
    match &alert.session {
        None => text.push('\n'),
        Some(SessionInfo { pid, user, database, query }) => {
            let _ = write!(
                text,
                "\nProcess {pid}, user `{}`, database `{}`\n```\n{}\n```\n",
                SlackCode(user),
                SlackCode(database),
                SlackCode(&truncated(query))
            );
        }
    }
}

fn truncated(query: &str) -> String {
    let mut chars = query.chars();
    let mut kept: String = chars.by_ref().take(SQL_CHARS_MAX).collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// A text to display inside code in Slack's mrkdwn. Escapes `&`, `<` and `>`, so that nothing
/// becomes a link or notifies a channel; replaces a backtick, which would end the code, with a
/// similar character; and removes terminal control characters.
struct SlackCode<'a>(&'a str);

impl std::fmt::Display for SlackCode<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        sanitized_line(self.0).chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '`' => f.write_str("\u{2cb}"),
            c => write!(f, "{c}"),
        })
    }
}

fn event_document(event: &WebhookEvent) -> Value {
    match event {
        WebhookEvent::Slow(slow) => {
            let SlowStatement { server, database, user, pid, seconds, sampled_us, query } = slow;
            json!({
                "kind": "slow", "server": server, "seen": timestamp(Some(*sampled_us)), "database": database,
                "user": user, "pid": pid, "seconds": seconds, "query": query,
            })
        }
        WebhookEvent::Alert(change) => {
            let alert = change.alert();
            let Alert { server, subject, rule, value, threshold, measure, session, sampled_us } =
                alert;
            let mut document = json!({
                "kind": "alert", "server": &**server, "seen": timestamp(*sampled_us), "subject": subject.name(),
                "rule": &**rule, "value": value, "threshold": threshold, "unit": measure.as_str(),
                "state": match change {
                    AlertChange::Started(_) => "began",
                    AlertChange::Ended(..) => "ended",
                },
            });
            if let AlertChange::Ended(_, lasted) = change {
                document["lasted"] = lasted.as_secs_f64().into();
            }
            if let Some(SessionInfo { pid, user, database, query }) = session {
                document["pid"] = (*pid).into();
                document["user"] = (**user).into();
                document["database"] = (**database).into();
                document["query"] = query.as_str().into();
            }
            document
        }
    }
}

/// Formats a time as ISO 8601 in UTC.
fn timestamp(us: Option<i64>) -> Option<String> {
    let timestamp = Timestamp::from_microsecond(us?).ok()?;
    Some(format!("{timestamp:.6}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::rules::{Measure, RuleSubject};

    fn slow(query: &str) -> SlowStatement {
        SlowStatement {
            server: "db1:5432/shop".to_owned(),
            database: "shop".to_owned(),
            user: "app".to_owned(),
            pid: 4711,
            seconds: 61.4,
            sampled_us: 1_700_000_000_000_000,
            query: query.to_owned(),
        }
    }

    fn message(events: Vec<WebhookEvent>) -> WebhookMessage {
        WebhookMessage { id: "one".to_owned(), events, dropped: 0 }
    }

    fn rendered(message: &WebhookMessage, format: &WebhookFormat) -> Value {
        serde_json::from_slice(&message.body(format)).unwrap()
    }

    #[test]
    fn slow_statement_uses_pgtop_wording() {
        let message = message(vec![WebhookEvent::Slow(slow("select 1"))]);
        assert_eq!(
            rendered(&message, &WebhookFormat::Slack),
            json!({"text": "Slow postgres query on `db1:5432/shop` database `shop` for user `app`\n\
                Query ID 4711 (has been running for 61 s):\n\n```\nselect 1\n```\n"})
        );
    }

    #[test]
    fn hostile_sql_stays_inside_code_block() {
        let hostile = "select '<!channel>' && ``` \u{1b}[2J é 日本";
        let body =
            rendered(&message(vec![WebhookEvent::Slow(slow(hostile))]), &WebhookFormat::Slack);
        let text = body["text"].as_str().unwrap();
        assert!(
            text.contains("select '&lt;!channel&gt;' &amp;&amp; ˋˋˋ ␛[2J é 日本\n```"),
            "{text}"
        );
        assert_eq!(text.matches("```").count(), 2);
    }

    #[test]
    fn excess_events_are_counted_in_text() {
        let mut many = message((0..37).map(|_| WebhookEvent::Slow(slow("select 1"))).collect());
        many.dropped = 5;
        let body = rendered(&many, &WebhookFormat::Slack);
        let text = body["text"].as_str().unwrap();
        assert!(text.starts_with("37 events:\nSlow postgres query"), "{text}");
        assert!(text.ends_with("… and 27 more\n5 other events were dropped\n"), "{text}");
        let long = rendered(
            &message(vec![WebhookEvent::Slow(slow(&"x".repeat(100_000)))]),
            &WebhookFormat::Slack,
        );
        assert!(long["text"].as_str().unwrap().chars().count() < 3_100);
    }

    fn alert() -> Alert {
        Alert {
            server: "db1".into(),
            subject: RuleSubject::Connections,
            rule: "connections > 90%".into(),
            value: 95.0,
            threshold: 90.0,
            measure: Measure::Percent,
            session: None,
            sampled_us: Some(1_700_000_000_000_000),
        }
    }

    #[test]
    fn alert_start_and_end_are_rendered() {
        let over = AlertChange::Ended(alert(), Duration::from_secs(90));
        let both = message(vec![
            WebhookEvent::Alert(AlertChange::Started(alert())),
            WebhookEvent::Alert(over),
        ]);
        assert_eq!(
            rendered(&both, &WebhookFormat::Slack)["text"],
            "2 events:\nAlert on `db1`: `connections &gt; 90%`, now 95.0%\n\
             Over on `db1` after 1m30s: `connections &gt; 90%`, last 95.0%\n"
        );
        let document = rendered(&both, &WebhookFormat::Document { key: None });
        assert_eq!(document["version"], 1);
        assert_eq!(document["events"][0]["state"], "began");
        assert_eq!(document["events"][0]["seen"], "2023-11-14T22:13:20.000000Z");
        assert_eq!(document["events"][1]["lasted"], 90.0);
    }

    #[test]
    fn signature_covers_timestamp_and_body() {
        // Computed with `printf '5.what' | openssl dgst -sha256 -hmac Jefe`.
        let format = WebhookFormat::Document { key: Some((*b"Jefe").into()) };
        let headers = message(Vec::new()).headers(&format, 5, b"what");
        let signature = "sha256=6a96515b52b456707261b4930f92fc28d8b4c262405f8b727d22edd2c4906f79";
        let signed = [
            ("Idempotency-Key", "one".to_owned()),
            ("Howdah-Timestamp", "5".to_owned()),
            ("Howdah-Signature", signature.to_owned()),
        ];
        assert_eq!(headers, signed);
        let unsigned = message(Vec::new()).headers(&WebhookFormat::Slack, 5, b"what");
        assert_eq!(unsigned, [("Idempotency-Key", "one".to_owned())]);
    }

    proptest! {
        #[test]
        fn text_contains_no_slack_markup(query in "\\PC{0,200}|[<>&`!a]{0,40}") {
            let body = rendered(&message(vec![WebhookEvent::Slow(slow(&query))]), &WebhookFormat::Slack);
            let text = body["text"].as_str().unwrap();
            prop_assert!(!text.contains(['<', '>']));
            prop_assert_eq!(text.matches("```").count(), 2);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}

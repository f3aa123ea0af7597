//! What a message says, in the forms that receivers understand.

use std::fmt::Write as _;

use howdah_collect::shown_line;
use jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use super::Form;
use crate::{
    rules::{Alert, Change, Who},
    slow::SlowStatement,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A statement was found to be slow.
    Slow(SlowStatement),
    /// An alert began, or ended.
    Alert(Change),
}

/// Events that are sent together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// What tells it from others, so that a receiver knows one that it got twice.
    pub id: String,
    /// What happened, the oldest first.
    pub events: Vec<Event>,
    /// Events before these that had no room in the queue.
    pub dropped: u64,
}

/// Most events that a text tells; the rest is counted.
const TOLD_MAX: usize = 10;

/// Longest statement in a text, in characters: Slack cuts texts of 40,000.
const SQL_CHARS_MAX: usize = 2_900;

impl Message {
    /// The body for a receiver.
    pub(super) fn body(&self, form: &Form) -> Vec<u8> {
        let document = match form {
            Form::Slack => json!({ "text": self.text() }),
            Form::Document { .. } => self.document(),
        };
        document.to_string().into_bytes()
    }

    /// The headers for a receiver, at a time in seconds since 1970. The signature is of the time, a point
    /// and the body, so that a message cannot be sent again later by somebody who has seen it.
    pub(super) fn headers(&self, form: &Form, seconds: i64, body: &[u8]) -> String {
        let mut headers = format!("Idempotency-Key: {}\r\n", self.id);
        if let Form::Document { key: Some(key) } = form {
            let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
            context.update(seconds.to_string().as_bytes());
            context.update(b".");
            context.update(body);
            let _ = write!(headers, "Howdah-Timestamp: {seconds}\r\nHowdah-Signature: sha256=");
            for byte in context.sign().as_ref() {
                let _ = write!(headers, "{byte:02x}");
            }
            headers.push_str("\r\n");
        }
        headers
    }

    /// The text for a chat.
    fn text(&self) -> String {
        let mut text = String::new();
        if self.events.len() > 1 {
            let _ = writeln!(text, "{} events:", self.events.len());
        }
        for event in self.events.iter().take(TOLD_MAX) {
            match event {
                Event::Slow(slow) => slow_text(&mut text, slow),
                Event::Alert(change) => alert_text(&mut text, change),
            }
        }
        if let Some(more @ 1..) = self.events.len().checked_sub(TOLD_MAX) {
            let _ = writeln!(text, "… and {more} more");
        }
        if self.dropped > 0 {
            let _ = writeln!(text, "{} older events were dropped", self.dropped);
        }
        text
    }

    fn document(&self) -> Value {
        let events: Vec<Value> = self.events.iter().map(event_document).collect();
        json!({ "version": 1, "id": self.id, "dropped": self.dropped, "events": events })
    }
}

/// pgtop's words.
fn slow_text(text: &mut String, slow: &SlowStatement) {
    let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
    let _ = write!(
        text,
        "Slow postgres query on `{}` database `{}` for user `{}`\n\
         Query ID {pid} (has been running for {seconds:.0} s):\n\n```\n{}\n```\n",
        Chat(server),
        Chat(database),
        Chat(user),
        Chat(&cut(query))
    );
}

fn alert_text(text: &mut String, change: &Change) {
    let alert = change.alert();
    let value = alert.measure.shown(alert.value);
    let _ = match change {
        Change::Began(_) => {
            write!(text, "Alert on `{}`: `{}`, now {value}", Chat(&alert.server), Chat(&alert.rule))
        }
        Change::Ended(_, lasted) => {
            let lasted = crate::units::span(lasted.as_secs_f64());
            write!(
                text,
                "Over on `{}` after {lasted}: `{}`, last {value}",
                Chat(&alert.server),
                Chat(&alert.rule)
            )
        }
    };
    match &alert.who {
        None => text.push('\n'),
        Some(Who { pid, user, database, query }) => {
            let _ = write!(
                text,
                "\nProcess {pid}, user `{}`, database `{}`\n```\n{}\n```\n",
                Chat(user),
                Chat(database),
                Chat(&cut(query))
            );
        }
    }
}

fn cut(query: &str) -> String {
    let mut chars = query.chars();
    let mut kept: String = chars.by_ref().take(SQL_CHARS_MAX).collect();
    if chars.next().is_some() {
        kept.push('…');
    }
    kept
}

/// Text inside of code in Slack's mrkdwn: `&`, `<` and `>` are escaped, as Slack wants it, so that nothing in
/// it becomes a link or calls a whole channel; a backtick, which would end the code, becomes a letter that
/// looks like one; and nothing that steers a terminal is left.
struct Chat<'a>(&'a str);

impl std::fmt::Display for Chat<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        shown_line(self.0).chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '`' => f.write_str("\u{2cb}"),
            c => write!(f, "{c}"),
        })
    }
}

fn event_document(event: &Event) -> Value {
    match event {
        Event::Slow(slow) => {
            let SlowStatement { server, database, user, pid, seconds, seen_us, query } = slow;
            json!({
                "kind": "slow", "server": server, "seen": moment(Some(*seen_us)), "database": database,
                "user": user, "pid": pid, "seconds": seconds, "query": query,
            })
        }
        Event::Alert(change) => {
            let alert = change.alert();
            let Alert { server, subject, rule, value, threshold, measure, who, seen_us } = alert;
            let mut document = json!({
                "kind": "alert", "server": server, "seen": moment(*seen_us), "subject": subject.name(),
                "rule": rule, "value": value, "threshold": threshold, "unit": measure.as_str(),
                "state": match change {
                    Change::Began(_) => "began",
                    Change::Ended(..) => "ended",
                },
            });
            if let Change::Ended(_, lasted) = change {
                document["lasted"] = lasted.as_secs_f64().into();
            }
            if let Some(Who { pid, user, database, query }) = who {
                document["pid"] = (*pid).into();
                document["user"] = (**user).into();
                document["database"] = (**database).into();
                document["query"] = query.as_str().into();
            }
            document
        }
    }
}

/// ISO 8601 in UTC.
fn moment(us: Option<i64>) -> Option<String> {
    let timestamp = Timestamp::from_microsecond(us?).ok()?;
    Some(format!("{timestamp:.6}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::rules::{Measure, Subject};

    fn slow(query: &str) -> SlowStatement {
        SlowStatement {
            server: "db1:5432/shop".to_owned(),
            database: "shop".to_owned(),
            user: "app".to_owned(),
            pid: 4711,
            seconds: 61.4,
            seen_us: 1_700_000_000_000_000,
            query: query.to_owned(),
        }
    }

    fn message(events: Vec<Event>) -> Message {
        Message { id: "one".to_owned(), events, dropped: 0 }
    }

    fn sent(message: &Message, form: &Form) -> Value {
        serde_json::from_slice(&message.body(form)).unwrap()
    }

    #[test]
    fn a_slow_statement_is_told_in_pgtop_s_words() {
        let message = message(vec![Event::Slow(slow("select 1"))]);
        assert_eq!(
            sent(&message, &Form::Slack),
            json!({"text": "Slow postgres query on `db1:5432/shop` database `shop` for user `app`\n\
                Query ID 4711 (has been running for 61 s):\n\n```\nselect 1\n```\n"})
        );
    }

    #[test]
    fn sql_cannot_call_a_channel_nor_leave_its_fence() {
        let hostile = "select '<!channel>' && ``` \u{1b}[2J é 日本";
        let body = sent(&message(vec![Event::Slow(slow(hostile))]), &Form::Slack);
        let text = body["text"].as_str().unwrap();
        assert!(
            text.contains("select '&lt;!channel&gt;' &amp;&amp; ˋˋˋ ␛[2J é 日本\n```"),
            "{text}"
        );
        assert_eq!(text.matches("```").count(), 2);
    }

    #[test]
    fn many_are_one_text_with_the_rest_counted() {
        let mut many = message((0..37).map(|_| Event::Slow(slow("select 1"))).collect());
        many.dropped = 5;
        let body = sent(&many, &Form::Slack);
        let text = body["text"].as_str().unwrap();
        assert!(text.starts_with("37 events:\nSlow postgres query"), "{text}");
        assert!(text.ends_with("… and 27 more\n5 older events were dropped\n"), "{text}");
        let long = sent(&message(vec![Event::Slow(slow(&"x".repeat(100_000)))]), &Form::Slack);
        assert!(long["text"].as_str().unwrap().chars().count() < 3_100);
    }

    fn alert() -> Alert {
        Alert {
            server: "db1".into(),
            subject: Subject::Connections,
            rule: "connections > 90%".into(),
            value: 95.0,
            threshold: 90.0,
            measure: Measure::Percent,
            who: None,
            seen_us: Some(1_700_000_000_000_000),
        }
    }

    #[test]
    fn an_alert_is_told_when_it_begins_and_when_it_is_over() {
        let over = Change::Ended(alert(), Duration::from_secs(90));
        let both = message(vec![Event::Alert(Change::Began(alert())), Event::Alert(over)]);
        assert_eq!(
            sent(&both, &Form::Slack)["text"],
            "2 events:\nAlert on `db1`: `connections &gt; 90%`, now 95.0%\n\
             Over on `db1` after 1m30s: `connections &gt; 90%`, last 95.0%\n"
        );
        let document = sent(&both, &Form::Document { key: None });
        assert_eq!(document["version"], 1);
        assert_eq!(document["events"][0]["state"], "began");
        assert_eq!(document["events"][0]["seen"], "2023-11-14T22:13:20.000000Z");
        assert_eq!(document["events"][1]["lasted"], 90.0);
    }

    #[test]
    fn a_signature_is_of_the_time_and_the_body() {
        // Computed by
        // `printf '5.what' | openssl dgst -sha256 -hmac Jefe`.
        let form = Form::Document { key: Some((*b"Jefe").into()) };
        let headers = message(Vec::new()).headers(&form, 5, b"what");
        assert_eq!(
            headers,
            "Idempotency-Key: one\r\nHowdah-Timestamp: 5\r\nHowdah-Signature: sha256=6a96515b52b456707261b4930f92fc28d8b4c262405f8b727d22edd2c4906f79\r\n"
        );
        let unsigned = message(Vec::new()).headers(&Form::Slack, 5, b"what");
        assert_eq!(unsigned, "Idempotency-Key: one\r\n");
    }

    proptest! {
        #[test]
        fn a_text_never_holds_what_slack_acts_on(query in "\\PC{0,200}|[<>&`!a]{0,40}") {
            let body = sent(&message(vec![Event::Slow(slow(&query))]), &Form::Slack);
            let text = body["text"].as_str().unwrap();
            prop_assert!(!text.contains(['<', '>']));
            prop_assert_eq!(text.matches("```").count(), 2);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}

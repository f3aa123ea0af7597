//! A person in front of a screen, from the first picture to the last.
//!
//! One loop has the model and draws. Keys, standings of servers and results of signals come to it as
//! messages from threads that may wait as long as they like.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use howdah_collect::{Action, Signalled, Signals, Suspect, VIEWS};
use howdah_connect::Target;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::{
    Model, Settings, Standing,
    kill::APPLICATION,
    model::{Effect, Message},
    sampler::{Sampler, Wanted, with_causes},
    screen::{self, Theme},
    slow::{SlowLog, Watcher},
    terminal::Screen,
};

/// A server to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// What to call it.
    pub name: String,
    /// How to reach it.
    pub target: Target,
}

/// Longest that the picture stays as it is: ages on it grow.
const REDRAW: Duration = Duration::from_secs(1);

/// Tells slow statements to a log, from the threads of samplers.
#[derive(Clone, Debug)]
pub struct Announcer {
    threshold: Duration,
    log: Arc<Mutex<SlowLog>>,
}

impl Announcer {
    /// Statements that run longer than `threshold` go to `log`.
    pub fn new(threshold: Duration, log: SlowLog) -> Self {
        Self { threshold, log: Arc::new(Mutex::new(log)) }
    }

    /// What looks at one server's standings, and gives a sentence if the log cannot be written.
    pub(crate) fn for_server(
        &self,
        name: &str,
    ) -> impl FnMut(&Standing) -> Option<String> + Send + use<> {
        let mut watcher = Watcher::new(name, self.threshold);
        let log = Arc::clone(&self.log);
        move |standing| {
            let Standing::Read(snapshot) = standing else { return None };
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let mut trouble = None;
            for slow in watcher.look(&snapshot.activity) {
                if let Err(error) = log.write(&slow) {
                    tracing::error!(%error, pid = slow.pid, "a slow statement is not in the log");
                    trouble = Some(with_causes(&error));
                }
            }
            trouble
        }
    }
}

/// Shows the servers until somebody quits, or `is_over` says so.
///
/// # Errors
///
/// The terminal cannot be used, or there is no thread to be had.
pub fn run(
    servers: Vec<Watch>,
    settings: Settings,
    announcer: Option<&Announcer>,
    with_colours: bool,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let theme = if with_colours { Theme::colours() } else { Theme::mono() };
    let (sender, messages) = channel();
    let mut model = Model::new(servers.iter().map(|watch| watch.name.clone()), settings);
    let watching = Watching::start(servers, model.wanted(), announcer, &sender)?;
    let mut screen = Screen::take()?;
    read_keys(sender)?;
    loop {
        screen.draw(|frame| screen::draw(frame, &mut model, &theme))?;
        for message in next(&messages) {
            for effect in model.update(message) {
                match effect {
                    Effect::Quit => return Ok(()),
                    Effect::Copy(text) => screen.copy(&text)?,
                    effect => watching.act(effect)?,
                }
            }
        }
        if is_over() {
            return Ok(());
        }
    }
}

/// The messages that are there; waits for one, but not longer than a picture may stay.
fn next(messages: &Receiver<Message>) -> Vec<Message> {
    let first = match messages.recv_timeout(REDRAW) {
        Ok(message) => message,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Vec::new(),
    };
    std::iter::once(first).chain(messages.try_iter()).collect()
}

/// Reads the keyboard until nobody listens any more.
fn read_keys(sender: Sender<Message>) -> io::Result<()> {
    let read = move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Message::Key(key),
                Ok(Event::Resize(..)) => Message::Resize,
                Ok(_) => continue,
                Err(_) => return,
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read).map(drop)
}

/// The samplers, and what it takes to act.
struct Watching {
    servers: Vec<Watch>,
    samplers: Vec<Sampler>,
    sender: Sender<Message>,
}

impl Watching {
    fn start(
        mut servers: Vec<Watch>,
        wanted: Wanted,
        announcer: Option<&Announcer>,
        sender: &Sender<Message>,
    ) -> io::Result<Self> {
        for watch in &mut servers {
            watch.target = watch.target.with_application_name(APPLICATION);
        }
        let start = |(at, watch): (usize, &Watch)| {
            let sender = sender.clone();
            let mut announce = announcer.map(|announcer| announcer.for_server(&watch.name));
            Sampler::start(watch.target.clone(), wanted, move |standing| {
                let trouble = announce.as_mut().and_then(|announce| announce(&standing));
                // Nobody listens any more when it is over.
                let _ = sender.send(Message::Standing(at, standing));
                if let Some(trouble) = trouble {
                    let _ = sender.send(Message::Trouble(trouble));
                }
            })
        };
        let samplers = servers.iter().enumerate().map(start).collect::<io::Result<_>>()?;
        Ok(Self { servers, samplers, sender: sender.clone() })
    }

    fn act(&self, effect: Effect) -> io::Result<()> {
        match effect {
            Effect::Want { interval, idle_texts, view } => {
                let view = view.and_then(|name| VIEWS.iter().find(|view| view.name == name));
                for sampler in &self.samplers {
                    sampler.want(Wanted { interval, idle_texts, view });
                }
                Ok(())
            }
            Effect::Signal(server, action, suspects) => {
                let Some(watch) = self.servers.get(server) else { return Ok(()) };
                let (target, sender) = (watch.target.clone(), self.sender.clone());
                let send = move || {
                    // Nobody listens any more when it is over.
                    let _ = sender.send(Message::Signalled(signal(&target, action, &suspects)));
                };
                std::thread::Builder::new().name("signals".to_owned()).spawn(send).map(drop)
            }
            Effect::Quit | Effect::Copy(_) => Ok(()),
        }
    }
}

/// Sends signals over a connection of their own, and tells what became of each.
pub fn signal(
    target: &Target,
    action: Action,
    suspects: &[Suspect],
) -> Vec<(Suspect, Result<Signalled, String>)> {
    let mut signals = Signals::connect(target);
    let mut send = |suspect: &Suspect| match &mut signals {
        Ok(signals) => signals.send(action, *suspect).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let results: Vec<_> = suspects.iter().map(|suspect| (*suspect, send(suspect))).collect();
    for (suspect, result) in &results {
        tracing::info!(pid = suspect.pid, action = action.as_str(), ?result, "signal");
    }
    results
}

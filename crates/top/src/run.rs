//! A person in front of a screen, from the first picture to the last.
//!
//! One loop has the model and draws. Keys, standings of servers and results of signals come to it as
//! messages from threads that may wait as long as they like.

use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::Duration,
};

use howdah_collect::{Action, Signalled, Signals, Suspect, VIEWS};
use howdah_connect::Target;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::{
    Model, Settings,
    kill::APPLICATION,
    model::{Effect, Message},
    sampler::{Sampler, Wanted},
    screen::{self, Theme},
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

/// Shows the servers until somebody quits, or `is_over` says so.
///
/// # Errors
///
/// The terminal cannot be used, or there is no thread to be had.
pub fn run(
    servers: Vec<Watch>,
    settings: Settings,
    with_colours: bool,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let theme = if with_colours { Theme::colours() } else { Theme::mono() };
    let (sender, messages) = channel();
    let mut model = Model::new(servers.iter().map(|watch| watch.name.clone()), settings);
    let watching = Watching::start(servers, model.wanted(), &sender)?;
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
        sender: &Sender<Message>,
    ) -> io::Result<Self> {
        for watch in &mut servers {
            watch.target = watch.target.with_application_name(APPLICATION);
        }
        let start = |(at, watch): (usize, &Watch)| {
            let sender = sender.clone();
            Sampler::start(watch.target.clone(), wanted, move |standing| {
                // Nobody listens any more when it is over.
                let _ = sender.send(Message::Standing(at, standing));
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

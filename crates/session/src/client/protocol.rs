//! Everything a connection knows but its input: what each message does to it.

use std::fmt;

use howdah_wire::{
    Backend, Frame, Header,
    backend::{Message, ServerError, Severity, TransactionStatus},
    startup::CancelKey,
};

use super::{
    login::{Handshake, Login},
    pipeline::{Pipeline, RequestId},
};
use crate::{CopyData, Error, Event, Row, buffers::Output, settings::Settings};

pub(super) struct Protocol {
    pub(super) state: State,
    pub(super) output: Output,
    /// Requests made before the login was complete.
    held: Vec<u8>,
    pub(super) pipeline: Pipeline,
    pub(super) answered: Option<RequestId>,
    pub(super) settings: Settings,
    pub(super) cancel_key: Option<CancelKey>,
    pub(super) transaction_status: TransactionStatus,
    pub(super) terminated: bool,
}

impl fmt::Debug for Protocol {
    /// Leaves out the requests that are held back, which are somebody's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protocol")
            .field("state", &self.state)
            .field("transaction_status", &self.transaction_status)
            .field("pipeline", &self.pipeline)
            .field("output", &self.output)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// See the diagram at [`super::Client`].
#[derive(Debug)]
pub(super) enum State {
    LoggingIn(Box<Handshake>),
    Open,
    Closed,
    Failed(Error),
}

impl Protocol {
    pub(super) fn new(login: Login, nonce: [u8; 18]) -> Self {
        let mut output = Output::default();
        let state = match login.startup(output.buffer()) {
            Ok(()) => State::LoggingIn(Box::new(Handshake::new(login, nonce))),
            Err(error) => State::Failed(error.into()),
        };
        Self {
            state,
            output,
            held: Vec::new(),
            pipeline: Pipeline::default(),
            answered: None,
            settings: Settings::default(),
            cancel_key: None,
            transaction_status: TransactionStatus::Idle,
            terminated: false,
        }
    }

    /// The longest body to accept. Before the server has let us in it has nothing long to say.
    pub(super) fn body_bytes_max(&self, kind: Backend) -> u32 {
        match &self.state {
            State::LoggingIn(_) => Backend::Authentication.body_bytes_max(),
            _ => kind.body_bytes_max(),
        }
    }

    /// Where requests go, if anywhere.
    pub(super) fn request_buffer(&mut self) -> Option<&mut Vec<u8>> {
        match self.state {
            State::LoggingIn(_) => Some(&mut self.held),
            State::Open => Some(self.output.buffer()),
            State::Closed | State::Failed(_) => None,
        }
    }

    /// Whether a kind of message makes no event.
    pub(super) fn absorbs(kind: Backend) -> bool {
        matches!(
            kind,
            Backend::Authentication | Backend::BackendKeyData | Backend::NegotiateProtocolVersion
        )
    }

    /// Takes a message that makes no event.
    pub(super) fn absorb(&mut self, frame: Frame<'_>) -> Result<(), Error> {
        let message = Message::parse(frame)?;
        let State::LoggingIn(handshake) = &mut self.state else {
            return Err(Error::Unexpected { message: message.kind(), state: "logged in" });
        };
        match message {
            Message::Authentication(request) => handshake.answer(request, self.output.buffer()),
            Message::BackendKeyData(key) => {
                handshake.expect_settling(Backend::BackendKeyData)?;
                self.cancel_key = Some(key);
                Ok(())
            }
            Message::NegotiateProtocolVersion(offer) if offer.newest.major != 3 => {
                Err(Error::ProtocolVersion { offered: offer.newest })
            }
            _ => Ok(()),
        }
    }

    /// Takes a row or a piece of COPY data that nobody wants.
    pub(super) fn discarded<'a>(
        &mut self,
        kind: Backend,
        header: Header,
    ) -> Result<Event<'a>, Error> {
        self.answer(kind)?;
        let body_bytes = header.body_bytes;
        Ok(match kind {
            Backend::DataRow => Event::Row(Row { body_bytes, cells: None }),
            _ => Event::CopyData(CopyData { body_bytes, data: None }),
        })
    }

    /// Takes a message that makes an event.
    pub(super) fn event<'a>(&mut self, frame: Frame<'a>) -> Result<Event<'a>, Error> {
        let message = Message::parse(frame)?;
        match message {
            Message::ReadyForQuery(status) => return self.ready(status),
            Message::ErrorResponse(error) => return self.error(error),
            Message::NoticeResponse(notice) => return Ok(Event::Notice(notice)),
            Message::NotificationResponse(notification) => {
                return Ok(Event::Notification(notification));
            }
            Message::ParameterStatus { name, value } => {
                self.settings.set(name, value)?;
                return Ok(Event::ParameterStatus { name, value });
            }
            _ => self.answer(message.kind())?,
        }
        let body_bytes = || u32::try_from(frame.body.len()).expect("a body has a 32-bit length");
        Ok(match message {
            Message::BindComplete => Event::BindComplete,
            Message::CloseComplete => Event::CloseComplete,
            Message::CommandComplete(tag) => Event::CommandComplete(tag),
            Message::CopyBothResponse(_) => Event::CopyBoth,
            Message::CopyData(data) => {
                Event::CopyData(CopyData { body_bytes: body_bytes(), data: Some(data) })
            }
            Message::CopyDone => Event::CopyDone,
            Message::CopyInResponse(_) => Event::CopyIn,
            Message::CopyOutResponse(_) => Event::CopyOut,
            Message::DataRow(cells) => {
                Event::Row(Row { body_bytes: body_bytes(), cells: Some(cells) })
            }
            Message::EmptyQueryResponse => Event::EmptyQuery,
            Message::FunctionCallResponse(value) => Event::FunctionResult(value),
            Message::NoData => Event::NoData,
            Message::ParameterDescription(types) => Event::ParameterDescription(types),
            Message::ParseComplete => Event::ParseComplete,
            Message::PortalSuspended => Event::PortalSuspended,
            Message::RowDescription(fields) => Event::RowDescription(fields),
            other => {
                return Err(Error::Unexpected { message: other.kind(), state: "logged in" });
            }
        })
    }

    /// The other side has closed the connection.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        if self.terminated || matches!(self.state, State::Closed) {
            self.state = State::Closed;
            return Ok(());
        }
        self.state = State::Failed(Error::ConnectionLost);
        Err(Error::ConnectionLost)
    }

    fn ready<'a>(&mut self, status: TransactionStatus) -> Result<Event<'a>, Error> {
        self.transaction_status = status;
        let State::LoggingIn(handshake) = &self.state else {
            self.answered = self.pipeline.answer(Backend::ReadyForQuery)?;
            return Ok(Event::Ready(status));
        };
        handshake.expect_settling(Backend::ReadyForQuery)?;
        self.state = State::Open;
        self.output.buffer().append(&mut self.held);
        self.held = Vec::new();
        Ok(Event::LoggedIn)
    }

    fn error<'a>(&mut self, error: ServerError<'a>) -> Result<Event<'a>, Error> {
        let refused = matches!(self.state, State::LoggingIn(_));
        if !refused {
            self.answered = self.pipeline.answer(Backend::ErrorResponse)?;
        }
        if refused || error.severity().is_some_and(Severity::ends_session) {
            self.state = State::Closed;
        }
        Ok(Event::Error(error))
    }

    /// Counts a message as part of the answer to the oldest request.
    fn answer(&mut self, kind: Backend) -> Result<(), Error> {
        if matches!(self.state, State::LoggingIn(_)) {
            return Err(Error::Unexpected { message: kind, state: "logging in" });
        }
        self.answered = self.pipeline.answer(kind)?;
        Ok(())
    }
}

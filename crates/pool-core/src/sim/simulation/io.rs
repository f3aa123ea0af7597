//! [`SimIo`]: a worker's sockets, as its core sees them. The core's commands are stored, and the
//! simulation applies them after the call to the core has returned.

use std::{collections::HashSet, io::IoSlice};

use howdah_wire::startup::CancelKey;

use super::super::random::SimRandom;
use crate::{Backlog, Channel, ClientId, CoreIo, PeerId, PoolId, ServerId, Transfer, WorkerId};

/// A command of a core, which is applied after the call to the core has returned.
pub(super) enum IoCommand {
    Send(PeerId, Vec<u8>),
    Resume(PeerId),
    Close(PeerId),
    Open(ServerId, PoolId),
    Cancel(ServerId),
    RequestServer(PoolId),
    RequestIdleServers(PoolId, u32),
    ConfirmIdleServers(PoolId, WorkerId),
    Listen(ClientId),
    HandOver(ServerId, WorkerId, Box<Transfer>),
    Drain(PeerId),
}

/// A worker's sockets.
pub(super) struct SimIo {
    pub(super) commands: Vec<IoCommand>,
    pub(super) paused: HashSet<PeerId>,
    pub(super) backlogged: HashSet<PeerId>,
    pub(super) random: SimRandom,
    pub(super) backlog_percent: u64,
}

impl CoreIo for SimIo {
    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.commands.push(IoCommand::Send(to, bytes));
        if self.backlogged.contains(&to) {
            return Backlog::Waiting;
        }
        if self.random.percent(self.backlog_percent) {
            self.backlogged.insert(to);
            self.commands.push(IoCommand::Drain(to));
            return Backlog::Waiting;
        }
        Backlog::Empty
    }

    fn pause(&mut self, peer: PeerId) {
        assert!(self.paused.insert(peer), "{peer:?} is paused twice");
    }

    fn resume(&mut self, peer: PeerId) {
        assert!(self.paused.remove(&peer), "{peer:?} is resumed and was not paused");
        self.commands.push(IoCommand::Resume(peer));
    }

    fn close(&mut self, peer: PeerId) {
        self.commands.push(IoCommand::Close(peer));
    }

    fn listen(&mut self, client: ClientId, _: PoolId, channels: Vec<Channel>, _: bool) {
        assert!(!channels.is_empty());
        self.commands.push(IoCommand::Listen(client));
    }

    fn open_server(&mut self, server: ServerId, pool: PoolId) {
        self.commands.push(IoCommand::Open(server, pool));
    }

    fn send_cancel(&mut self, server: ServerId, _: PoolId, _: &CancelKey) {
        self.commands.push(IoCommand::Cancel(server));
    }

    fn request_server(&mut self, pool: PoolId) {
        self.commands.push(IoCommand::RequestServer(pool));
    }

    fn request_idle_servers(&mut self, pool: PoolId, servers_max: u32) {
        self.commands.push(IoCommand::RequestIdleServers(pool, servers_max));
    }

    fn confirm_idle_servers(&mut self, pool: PoolId, to: WorkerId) {
        self.commands.push(IoCommand::ConfirmIdleServers(pool, to));
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        self.commands.push(IoCommand::HandOver(server, to, transfer));
    }
}

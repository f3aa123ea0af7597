//! A segment's frames as one zstd stream that is flushed behind each: what was packed before helps, and what
//! is there can be unpacked although the rest is not.

use std::{fmt, io};

use zstd::{
    stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer},
    zstd_safe,
};

use super::bytes::Damage;

/// Beyond that the gain is small and the time is not.
const LEVEL: i32 = 3;

/// A window of 512 kB holds many frames; what packs and unpacks holds no more than a few of them.
const WINDOW_LOG: u32 = 19;

/// Longest frame, unpacked.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;

pub(super) struct Packer(Encoder<'static>);

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Packer")
    }
}

impl Packer {
    pub(super) fn new() -> io::Result<Self> {
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        Ok(Self(encoder))
    }

    /// Begins a segment.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.0.reinit()
    }

    /// Packs a frame to its last byte.
    pub(super) fn pack(&mut self, frame: &[u8]) -> io::Result<Vec<u8>> {
        let mut packed = vec![0; zstd_safe::compress_bound(frame.len()) + 32];
        let mut filled = 0;
        let mut input = InBuffer::around(frame);
        loop {
            let mut output = OutBuffer::around(&mut packed[filled..]);
            self.0.run(&mut input, &mut output)?;
            let is_read = input.pos() == frame.len();
            let left = if is_read { self.0.flush(&mut output)? } else { 1 };
            filled += output.pos();
            if left == 0 {
                packed.truncate(filled);
                return Ok(packed);
            }
            packed.resize(packed.len() * 2, 0);
        }
    }
}

pub(super) struct Unpacker(Decoder<'static>);

impl Unpacker {
    pub(super) fn new() -> Result<Self, Damage> {
        let mut decoder = Decoder::new().map_err(|_| Damage::Packing)?;
        let limited = decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG));
        limited.map_err(|_| Damage::Packing)?;
        Ok(Self(decoder))
    }

    /// Unpacks the next frame.
    pub(super) fn unpack(&mut self, packed: &[u8]) -> Result<Vec<u8>, Damage> {
        let mut frame = Vec::new();
        let mut filled = 0;
        let mut input = InBuffer::around(packed);
        loop {
            // Not more at a time than there may be: a few bytes can ask for a lot.
            frame.resize((filled * 2).clamp(16 << 10, FRAME_BYTES_MAX + 1), 0);
            let mut output = OutBuffer::around(&mut frame[filled..]);
            self.0.run(&mut input, &mut output).map_err(|_| Damage::Packing)?;
            let written = output.pos();
            filled += written;
            let is_full = filled == frame.len();
            if filled > FRAME_BYTES_MAX {
                return Err(Damage::Size);
            }
            if !is_full {
                if input.pos() < packed.len() {
                    // It ended before its bytes did: what follows belongs to nothing.
                    return Err(Damage::Packing);
                }
                frame.truncate(filled);
                return Ok(frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_one_by_one() {
        let frames: Vec<Vec<u8>> =
            vec![b"first".repeat(1000), Vec::new(), vec![7; 1 << 20], (0..=255).collect()];
        let mut packer = Packer::new().unwrap();
        for _ in 0..2 {
            packer.restart().unwrap();
            let packed: Vec<_> = frames.iter().map(|frame| packer.pack(frame).unwrap()).collect();
            let mut unpacker = Unpacker::new().unwrap();
            for (packed, frame) in packed.iter().zip(&frames) {
                assert!(unpacker.unpack(packed).unwrap() == *frame);
            }
        }
    }

    #[test]
    fn a_few_bytes_cannot_ask_for_all_memory() {
        let bomb = zstd::bulk::compress(&vec![0; FRAME_BYTES_MAX + 100], 1).unwrap();
        assert_eq!(Unpacker::new().unwrap().unpack(&bomb), Err(Damage::Size));
        assert_eq!(Unpacker::new().unwrap().unpack(b"no zstd at all"), Err(Damage::Packing));
    }
}

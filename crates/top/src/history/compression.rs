//! Compresses a segment's frames as one zstd stream that is flushed after each frame: earlier
//! frames improve compression, and complete frames can be decompressed even if the rest is missing.

use std::{fmt, io};

use zstd::{
    stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer},
    zstd_safe,
};

use super::error::CorruptFrame;

/// zstd level. Higher levels compress only slightly better and take much longer.
const ZSTD_LEVEL: i32 = 3;

/// Window size as a power of two. 512 KiB cover many frames, and bound the memory that compression
/// and decompression need.
const WINDOW_LOG: u32 = 19;

/// Maximum size of a decompressed frame in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;

pub(super) struct FramePacker(Encoder<'static>);

impl fmt::Debug for FramePacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Packer")
    }
}

impl FramePacker {
    pub(super) fn new() -> io::Result<Self> {
        let mut encoder = Encoder::new(ZSTD_LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        Ok(Self(encoder))
    }

    /// Starts a new stream, for the next segment.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.0.reinit()
    }

    /// Compresses a frame. Decompressing it requires the previous frames of the segment.
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

pub(super) struct FrameUnpacker(Decoder<'static>);

impl FrameUnpacker {
    pub(super) fn new() -> Result<Self, CorruptFrame> {
        let mut decoder = Decoder::new().map_err(|_| CorruptFrame::Packing)?;
        let limited = decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG));
        limited.map_err(|_| CorruptFrame::Packing)?;
        Ok(Self(decoder))
    }

    /// Decompresses the next frame; the frames of a segment must be passed in order.
    pub(super) fn unpack(&mut self, packed: &[u8]) -> Result<Vec<u8>, CorruptFrame> {
        let mut frame = Vec::new();
        let mut filled = 0;
        let mut input = InBuffer::around(packed);
        loop {
            // The buffer grows step by step, because a few compressed bytes can expand to many.
            frame.resize((filled * 2).clamp(16 << 10, FRAME_BYTES_MAX + 1), 0);
            let mut output = OutBuffer::around(&mut frame[filled..]);
            self.0.run(&mut input, &mut output).map_err(|_| CorruptFrame::Packing)?;
            let written = output.pos();
            filled += written;
            let is_full = filled == frame.len();
            if filled > FRAME_BYTES_MAX {
                return Err(CorruptFrame::Size);
            }
            if !is_full {
                if input.pos() < packed.len() {
                    // The stream ended before its input did: the remaining bytes are not part of
                    // it.
                    return Err(CorruptFrame::Packing);
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
    fn frames_round_trip_one_by_one() {
        let frames: Vec<Vec<u8>> =
            vec![b"first".repeat(1000), Vec::new(), vec![7; 1 << 20], (0..=255).collect()];
        let mut packer = FramePacker::new().unwrap();
        for _ in 0..2 {
            packer.restart().unwrap();
            let packed: Vec<_> = frames.iter().map(|frame| packer.pack(frame).unwrap()).collect();
            let mut unpacker = FrameUnpacker::new().unwrap();
            for (packed, frame) in packed.iter().zip(&frames) {
                assert!(unpacker.unpack(packed).unwrap() == *frame);
            }
        }
    }

    #[test]
    fn decompression_bomb_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; FRAME_BYTES_MAX + 100], 1).unwrap();
        assert_eq!(FrameUnpacker::new().unwrap().unpack(&bomb), Err(CorruptFrame::Size));
        assert_eq!(
            FrameUnpacker::new().unwrap().unpack(b"no zstd at all"),
            Err(CorruptFrame::Packing)
        );
    }
}

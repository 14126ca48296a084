//! Damage and lies, by seed.

use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};

/// Values that lengths and offsets lie with.
const LIES: [u32; 12] = [
    0,
    1,
    3,
    4,
    7,
    8,
    24,
    255,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX - 3,
    u32::MAX,
];

/// Changes `bytes` a few times; `others` are good for splicing.
pub fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut SmallRng) {
    for _ in 0..rng.random_range(1..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..8) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => {
                let (from, to) = (at, (at + rng.random_range(1..40)).min(bytes.len()));
                let piece = bytes[from..to].to_vec();
                let at = rng.random_range(0..=bytes.len());
                bytes.splice(at..at, piece);
            }
            4 => {
                let to = (at + rng.random_range(1..16)).min(bytes.len());
                bytes.drain(at..to);
            }
            5 => lie(bytes, at & !3, rng),
            6 => lie(bytes, 24 + (at & !3), rng),
            _ => {
                let Some(other) = others.choose(rng) else { continue };
                let to = (at + rng.random_range(1..64)).min(bytes.len()).min(other.len());
                if at < to {
                    bytes[at..to].copy_from_slice(&other[at..to]);
                }
            }
        }
    }
}

/// Puts a wrong number over four bytes: an extreme, or one close to what stood there.
fn lie(bytes: &mut [u8], at: usize, rng: &mut SmallRng) {
    let Some(word) = bytes.get_mut(at..at + 4).and_then(|b| b.first_chunk_mut::<4>()) else {
        return;
    };
    let truth = u32::from_le_bytes(*word);
    let value = match rng.random_range(0..3) {
        0 => LIES[rng.random_range(0..LIES.len())],
        1 => truth.wrapping_add(rng.random_range(0..17)).wrapping_sub(8),
        _ => truth.wrapping_add(4 * rng.random_range(0..64)).wrapping_sub(128),
    };
    *word = value.to_le_bytes();
}

//! Decoding images: PNG, JPEG and WebP, told apart by their first bytes.

use std::io::Cursor;

use image_webp::WebPDecoder;
use zune_jpeg::JpegDecoder;
use zune_png::PngDecoder;
use zune_png::zune_core::bytestream::ZCursor;
use zune_png::zune_core::colorspace::ColorSpace;
use zune_png::zune_core::options::DecoderOptions;

/// An image with more pixels on a side is refused before it is unpacked.
const LARGEST_SIDE: usize = 1 << 14;

/// An image as it was unpacked: pixels of 1 to 4 components.
struct Image {
    width: usize,
    height: usize,
    components: usize,
    bytes: Vec<u8>,
}

/// The numbers of an image, brought to size: channel by channel, from 0 to 1.
pub(crate) fn decode_to(bytes: Vec<u8>, side: usize, channels: usize) -> Result<Vec<f32>, String> {
    Ok(decode(bytes)?.fit(side, channels))
}

/// What the bytes are is told by the bytes, not by the file's name.
fn decode(bytes: Vec<u8>) -> Result<Image, String> {
    let options = DecoderOptions::default()
        .set_max_width(LARGEST_SIDE)
        .set_max_height(LARGEST_SIDE)
        .png_set_strip_to_8bit(true)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let (size, components, bytes) = if bytes.starts_with(b"\x89PNG") {
        let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options);
        let bytes =
            decoder.decode_raw().map_err(|error| format!("it is not a complete PNG: {error:?}"))?;
        let components = decoder.colorspace().map_or(0, |space| space.num_components());
        (decoder.dimensions(), components, bytes)
    } else if bytes.starts_with(b"\xff\xd8") {
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        let bytes =
            decoder.decode().map_err(|error| format!("it is not a complete JPEG: {error:?}"))?;
        (decoder.dimensions(), 3, bytes)
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        webp(bytes)?
    } else {
        return Err("it is neither PNG, JPEG nor WebP".to_owned());
    };
    let (width, height) = size.unwrap_or_default();
    if components == 0 || bytes.len() != width * height * components || bytes.is_empty() {
        return Err("it was unpacked to another size than its head says".to_owned());
    }
    Ok(Image { width, height, components, bytes })
}

type Unpacked = (Option<(usize, usize)>, usize, Vec<u8>);

fn webp(bytes: Vec<u8>) -> Result<Unpacked, String> {
    let wrong = |error: image_webp::DecodingError| format!("it is not a complete WebP: {error}");
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(wrong)?;
    let (width, height) = decoder.dimensions();
    if width as usize > LARGEST_SIDE || height as usize > LARGEST_SIDE {
        return Err(format!("it has {width}×{height} pixels; {LARGEST_SIDE} a side are read"));
    }
    let size = decoder.output_buffer_size().ok_or("it is too large")?;
    let mut pixels = vec![0; size];
    // Of an animation this is the first frame.
    decoder.read_image(&mut pixels).map_err(wrong)?;
    let components = if decoder.has_alpha() { 4 } else { 3 };
    Ok((Some((width as usize, height as usize)), components, pixels))
}

impl Image {
    /// This image in `side`×`side` pixels, channel by channel, from 0 to 1. Each new pixel is
    /// the mean of the old ones that it covers, so that no detail is picked by accident.
    fn fit(&self, side: usize, channels: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(channels * side * side);
        for channel in 0..channels {
            for row in 0..side {
                let rows = covered(row, side, self.height);
                for column in 0..side {
                    let columns = covered(column, side, self.width);
                    let mut sum = 0.0;
                    for y in rows.clone() {
                        for x in columns.clone() {
                            sum += self.value(y * self.width + x, channel, channels);
                        }
                    }
                    values.push(sum / (rows.len() * columns.len()) as f32);
                }
            }
        }
        values
    }

    fn value(&self, pixel: usize, channel: usize, channels: usize) -> f32 {
        let at = pixel * self.components;
        let byte = |component: usize| f32::from(self.bytes[at + component]) / 255.0;
        match (self.components, channels) {
            (1 | 2, _) => byte(0),
            (_, 1) => 0.299 * byte(0) + 0.587 * byte(1) + 0.114 * byte(2),
            _ => byte(channel),
        }
    }
}

/// The old pixels that the new pixel `at` of `side` covers; at least one.
fn covered(at: usize, side: usize, old: usize) -> std::ops::Range<usize> {
    let start = at * old / side;
    start..((at + 1) * old / side).max(start + 1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PNG of 2×1 grey pixels, black and white.
    pub(crate) const TINY: &[u8] = &[
        0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44,
        0x52, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0xd1,
        0x49, 0x20, 0x56, 0x00, 0x00, 0x00, 0x0b, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x60,
        0xf8, 0x0f, 0x00, 0x01, 0x02, 0x01, 0x00, 0x42, 0xbe, 0xbc, 0x68, 0x00, 0x00, 0x00, 0x00,
        0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82,
    ];

    /// A lossless WebP of 2×1 pixels, black and white.
    pub(crate) fn tiny_webp() -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = image_webp::WebPEncoder::new(&mut bytes);
        let pixels = [0, 0, 0, 255, 255, 255];
        encoder.encode(&pixels, 2, 1, image_webp::ColorType::Rgb8).unwrap();
        bytes
    }

    #[test]
    fn png_and_webp_give_the_same_pixels() {
        for bytes in [TINY.to_vec(), tiny_webp()] {
            assert_eq!(decode(bytes.clone()).unwrap().fit(2, 1), [0.0, 1.0, 0.0, 1.0]);
            assert!(decode(bytes[..bytes.len() / 2].to_vec()).is_err());
        }
    }

    proptest! {
        #[test]
        fn every_new_pixel_covers_old_ones_and_none_is_left_out(side in 1usize..50, old in 1usize..200) {
            for at in 0..side {
                let range = covered(at, side, old);
                prop_assert!(!range.is_empty() && range.end <= old);
            }
            prop_assert_eq!(covered(side - 1, side, old).end, old);
        }
    }
}

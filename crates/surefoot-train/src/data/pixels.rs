//! Images in memory, a byte a pixel.

use super::{Form, Label, Sample, Source};

/// Images of one size with their classes.
#[derive(Debug)]
pub struct Pixels {
    name: String,
    form: Form,
    pixels: Vec<u8>,
    labels: Vec<u8>,
    brightest: f32,
}

impl Pixels {
    /// `pixels` are the images one after the other; `brightest` becomes 1. Panics if the sizes
    /// don't agree, so check them where the file can still be named.
    pub(super) fn new(
        name: impl Into<String>,
        form: Form,
        pixels: Vec<u8>,
        labels: Vec<u8>,
        brightest: f32,
    ) -> Self {
        assert_eq!(pixels.len(), labels.len() * form.size(), "one label for each image");
        Self { name: name.into(), form, pixels, labels, brightest }
    }
}

impl Source for Pixels {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn form(&self) -> Form {
        self.form
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let size = self.form.size();
        let pixels = &self.pixels[at * size..(at + 1) * size];
        let values = pixels.iter().map(|&pixel| f32::from(pixel) / self.brightest).collect();
        Ok(Sample::Dense { values, label: Label::Class(usize::from(self.labels[at])) })
    }

    fn label(&self, at: usize) -> Option<Label> {
        Some(Label::Class(usize::from(self.labels[at])))
    }

    fn name(&self, at: usize) -> String {
        format!("image {at} of {}", self.name)
    }
}

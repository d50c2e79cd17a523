"""Import of transcripts that other programs left on disk.

Each format has a module that reads lines into steps and does nothing else; ``importing`` writes the steps to tapes
through the same calls that every program uses.
"""

from tape.transcripts.importing import FORMATS, ImportedTranscript, import_transcript

__all__ = ["FORMATS", "ImportedTranscript", "import_transcript"]

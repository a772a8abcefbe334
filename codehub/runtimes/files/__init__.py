"""Operations on the files of a running workspace, done inside it by a file agent (ADR 0036)."""

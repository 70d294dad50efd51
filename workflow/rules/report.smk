# Figures, report, accuracy and packs: made on request, from artifacts alone.

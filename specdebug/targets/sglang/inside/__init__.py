"""What runs inside SGLang's own processes, by its plugin entry point: no file of it is edited.

This code is imported by SGLang's environment, which has torch and little else of what specdebug needs: nothing here may
import more than torch and this package's own modules of torch alone.
"""
